"""The three legs of rollout_vs_trainer: rollout, the trainer's recompute, and its first train forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bitgate.store.records import Reason
from bitgate.tools.captures.read import META_FILE, read_meta
from bitgate.tools.checks.execute import run_steps
from bitgate.tools.checks.plan import alone, together
from bitgate.tools.checks.responses import with_responses
from bitgate.tools.checks.select import axes_of
from bitgate.tools.config.sides import Model, Side
from bitgate.tools.config.workloads import TokenSequence, Workload
from bitgate.tools.engines.adapters import adapter_of
from bitgate.tools.engines.jobs import Canary, Generate, Prefill, Step, TrainForward
from bitgate.tools.errors import VerdictError
from bitgate.tools.runs.results import JobResult

if TYPE_CHECKING:
    from bitgate.tools.run_compare import CompareRequest
    from bitgate.tools.runs.context import RunContext

ROLLOUT, RECOMPUTE, TRAIN = "rollout", "recompute", "first_train_forward"
CANARY_SEQUENCES = 4


@dataclass
class Legs:
    """`captures`: leg -> shard folders; `results` and `axes` by the side's name, for sides with an engine."""

    sides: tuple[Side, ...]
    model: Model
    captures: dict[str, tuple[Path, ...]] = field(default_factory=dict)
    results: dict[str, JobResult] = field(default_factory=dict)
    axes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    reasons: list[Reason] = field(default_factory=list)
    workload: Workload | None = None


async def run_legs(context: RunContext, request: CompareRequest) -> Legs:
    project = context.project
    rollout = project.side(request.side, request.options.get(request.side))
    trainer = project.side(request.trainer, request.options.get(request.trainer), field="trainer")
    legs = Legs((rollout, trainer), project.model(request.model or rollout.model))
    if rollout.engine == trainer.engine == "capture":
        legs.captures = _rollout_capture(rollout) | _trainer_captures(trainer)
        return legs
    legs.workload = workload = project.workload(request.workload)
    prompts = workload.sequences()
    await _rollout(context, legs, rollout, prompts, workload)
    await _trainer(context, legs, trainer, with_responses(prompts, legs.captures[ROLLOUT]))
    return legs


async def _rollout(
    context: RunContext, legs: Legs, side: Side, prompts: Sequence[TokenSequence], workload: Workload
) -> None:
    if side.engine == "capture":
        legs.captures |= _rollout_capture(side)
        return
    order = range(len(prompts))
    steps: list[Step] = [
        Generate(name=ROLLOUT, groups=together(order), max_tokens=workload.max_tokens, sampling=workload.sampling),
        Canary(groups=together(order[:CANARY_SEQUENCES])),
    ]
    await context.progress(0, 2, f"{side.name}: sampling")
    result = await run_steps(context, side, legs.model, prompts, steps, context.project.policy.run_timeout)
    _keep(legs, side, result)
    legs.captures[ROLLOUT] = result.captures(ROLLOUT)


async def _trainer(context: RunContext, legs: Legs, side: Side, sequences: Sequence[TokenSequence]) -> None:
    if side.engine == "capture":
        legs.captures |= _trainer_captures(side)
        return
    packing = adapter_of(side.engine).packings[0]
    groups = alone(len(sequences))
    steps: list[Step] = [
        Prefill(name=RECOMPUTE, groups=groups, packing=packing),
        TrainForward(name=TRAIN, groups=groups, packing=packing),
        Canary(groups=groups[:CANARY_SEQUENCES]),
    ]
    await context.progress(1, 2, f"{side.name}: recomputing")
    result = await run_steps(context, side, legs.model, sequences, steps, context.project.policy.run_timeout)
    _keep(legs, side, result)
    legs.captures |= {RECOMPUTE: result.captures(RECOMPUTE), TRAIN: result.captures(TRAIN)}


def _keep(legs: Legs, side: Side, result: JobResult) -> None:
    legs.results[side.name] = result
    legs.axes[side.name] = axes_of(side, adapter_of(side.engine))


def _rollout_capture(side: Side) -> dict[str, tuple[Path, ...]]:
    captures = _capture_of(side)
    if ROLLOUT not in captures:
        raise VerdictError(
            "leg_missing", f"side {side.name}: {side.capture} holds {', '.join(captures)}, not the rollout"
        )
    return {ROLLOUT: captures[ROLLOUT]}


def _trainer_captures(side: Side) -> dict[str, tuple[Path, ...]]:
    return {leg: folders for leg, folders in _capture_of(side).items() if leg != ROLLOUT}


def _capture_of(side: Side) -> dict[str, tuple[Path, ...]]:
    """Leg -> folder of a capture side: one capture whose role says its leg, or a folder a leg."""
    assert side.capture is not None  # the configuration demands it of engine capture
    if (side.capture / META_FILE).is_file():
        return {read_meta(side.capture / META_FILE).role: (side.capture,)}
    found: dict[str, tuple[Path, ...]] = {
        leg: (side.capture / leg,) for leg in (ROLLOUT, RECOMPUTE, TRAIN) if (side.capture / leg).is_dir()
    }
    if not found:
        raise VerdictError(
            "capture_missing", f"side {side.name}: {side.capture} holds no capture.json and no folder of a leg"
        )
    return found
