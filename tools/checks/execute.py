"""Runs a check's jobs on a side and keeps what each step left, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pydantic import JsonValue

from bitgate.store.records import ModelRecord, SideRecord
from bitgate.tools.checks.plan import CheckPlan, PlannedJob, StepRef
from bitgate.tools.checks.responses import with_responses
from bitgate.tools.config.digests import digest_env
from bitgate.tools.config.sides import Model, Side
from bitgate.tools.config.workloads import TokenSequence
from bitgate.tools.engines.jobs import Generate, Job, Step
from bitgate.tools.errors import WorkerError
from bitgate.tools.runs.context import RunContext
from bitgate.tools.runs.launchers import LocalLauncher
from bitgate.tools.runs.results import JobResult, RankResult

LEASE = "lease"


@dataclass
class Executed:
    """`failed` holds the axis jobs whose engine did not come up in the state asked for: axis -> why."""

    results: dict[str, JobResult] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def captures(self, ref: StepRef) -> tuple[Path, ...]:
        return self.results[ref.job].captures(ref.step) if ref.job in self.results else ()

    def info(self, ref: StepRef) -> Mapping[str, JsonValue]:
        """The step's info, numbers summed over the ranks."""
        if ref.job not in self.results:
            return {}
        return merged_info(rank.steps[ref.step].info for rank in self.results[ref.job].ranks if ref.step in rank.steps)


def merged_info(infos: Iterable[Mapping[str, JsonValue]]) -> dict[str, JsonValue]:
    merged: dict[str, JsonValue] = {}
    for info in infos:
        for key, value in info.items():
            seen = merged.get(key)
            if isinstance(value, int | float) and not isinstance(value, bool) and isinstance(seen, int | float):
                merged[key] = seen + value
            else:
                merged.setdefault(key, value)
    return merged


async def execute(context: RunContext, side: Side, model: Model, plan: CheckPlan, timeout_s: float) -> Executed:
    """Runs every job of `plan`. A job that stands for an axis may fail and is kept as such; the first may not.

    What the first job generated is forced in the later ones.
    """
    done = Executed()
    sequences: Sequence[TokenSequence] = plan.sequences
    for number, planned in enumerate(plan.jobs):
        await context.progress(number, len(plan.jobs), f"{side.name}: {planned.name}")
        try:
            result = await run_planned(context, side, model, sequences, planned, timeout_s)
        except WorkerError as error:
            if planned.axis is None or not error.unsupported:
                raise
            done.failed[planned.axis] = f"{error.code}: {error.message}"
            continue
        done.results[planned.name] = result
        for step in planned.steps:
            if isinstance(step, Generate):
                sequences = with_responses(sequences, result.captures(step.name))
    return done


async def run_planned(
    context: RunContext,
    side: Side,
    model: Model,
    sequences: Sequence[TokenSequence],
    planned: PlannedJob,
    timeout_s: float,
) -> JobResult:
    at_work = replace(side, options={**side.options, **planned.options})
    return await run_steps(context, at_work, model, sequences, planned.steps, timeout_s)


async def run_steps(
    context: RunContext,
    side: Side,
    model: Model,
    sequences: Sequence[TokenSequence],
    steps: Sequence[Step],
    timeout_s: float,
) -> JobResult:
    """One start of the side's engine: writes the sequences, runs the steps, returns what the ranks reported."""
    _, job = job_of(context, side, model.path, sequences, steps, weight_version=model.weight_version)
    return await context.run_job(side, job, timeout_s=timeout_s)


NOTHING: Final = (TokenSequence((0,), ()),)
"""What a job is given that scores no tokens."""


async def run_probe(
    context: RunContext, side: Side, engine: str, model_path: Path, options: Mapping[str, JsonValue], timeout_s: float
) -> dict[str, Any]:
    """One local process in the side's interpreter whose report is its description; it loads no engine of the side.

    Raises:
        WorkerError: it ended without a report.
    """
    at_work = replace(side, engine=engine, options=options, launcher=LocalLauncher())
    _, job = job_of(context, at_work, model_path, NOTHING, ())
    done = await context.run_job(at_work, job, timeout_s=timeout_s)
    return dict(done.ranks[0].describe.volatile)


def job_of(
    context: RunContext,
    side: Side,
    model_path: Path,
    sequences: Sequence[TokenSequence],
    steps: Sequence[Step],
    *,
    weight_version: int = 0,
) -> tuple[Path, Job]:
    """The folder of a new job, with the sequences written in it, and the job itself."""
    from bitgate.tools.engines.worker.sequences import write_sequences

    folder = context.new_job(side)
    file = folder / "sequences.safetensors"
    write_sequences(file, [list(s.prompt) for s in sequences], [list(s.response) for s in sequences])
    return folder, Job(
        run_id=context.run_id,
        side=side.name,
        engine=side.engine,
        model_path=str(model_path),
        weight_version=weight_version,
        options=dict(side.options),
        sequences=str(file),
        steps=list(steps),
        out=str(folder / "out"),
        lease=str(context.folder / LEASE),
        module=None if side.module is None else str(side.module),
    )


def side_record(side: Side, axes: Sequence[str], result: JobResult) -> SideRecord:
    """The side as it ran. Ranks whose stable facts differ make another digest than ranks that agree."""
    first = result.ranks[0].describe
    stable: dict[str, JsonValue] = dict(first.stable)
    others = {f"rank{r.rank}": r.describe.stable for r in result.ranks if r.describe.stable != first.stable}
    if others:
        stable["ranks_that_differ"] = {name: dict(facts) for name, facts in others.items()}
    stable["ranks"] = len(result.ranks)
    return SideRecord(
        name=side.name,
        engine=side.engine,
        digest=side.digest(stable, tuple(axes)),
        options=dict(side.options),
        axes=tuple(axes),
        env=digest_env(side.env),
        configured=side.configured,
        stable=stable,
        volatile=dict(first.volatile),
    )


def model_record(model: Model, rank: RankResult) -> ModelRecord | None:
    """The model as the side's engine has it resident; None when the engine could not read its weights back."""
    if rank.weights is None or rank.model is None:
        return None
    return ModelRecord(
        name=model.name,
        architecture_digest=rank.model.architecture_digest,
        weights_digest=rank.weights.digest,
        weight_version=model.weight_version,
    )


def unreadable_weights(results: Mapping[str, JobResult]) -> dict[str, str]:
    """Side -> the first resident tensor that its engine could not read back, and why."""
    found: dict[str, str] = {}
    for side, result in results.items():
        for rank in result.ranks:
            for name, why in (rank.weights.unreadable if rank.weights else {}).items():
                found.setdefault(side, f"{name}: {why}")
    return found
