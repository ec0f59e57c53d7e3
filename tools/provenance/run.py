"""check_provenance in the supervisor: runs each side a little, reads what its ranks wrote, checks, and concludes."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
from pydantic import JsonValue

from bitgate.store.records import ArtifactRef, Finding, ModelRecord, Reason, SideRecord
from bitgate.tools.checks.company import forced
from bitgate.tools.checks.execute import model_record, run_steps, side_record
from bitgate.tools.checks.select import axes_of
from bitgate.tools.config.digests import NUMERIC_PREFIXES
from bitgate.tools.config.sides import Model, Side
from bitgate.tools.config.workloads import TokenSequence
from bitgate.tools.engines.adapters import adapter_of
from bitgate.tools.engines.base import Adapter
from bitgate.tools.engines.jobs import Generate, Prefill, Provenance, Sampling, Step, TrainForward
from bitgate.tools.engines.worker.provenance.devices import TRANSPORT
from bitgate.tools.errors import VerdictError
from bitgate.tools.provenance.check import Check, Declared, RankFacts
from bitgate.tools.provenance.files import Files, look_at, source_files
from bitgate.tools.provenance.hashing import LIST_NAME, HashCache
from bitgate.tools.provenance.observed import Observation, read_observation
from bitgate.tools.provenance.ranks import between_ranks
from bitgate.tools.provenance.record import SideProvenance, by_group, differences, fingerprint
from bitgate.tools.provenance.rules import checks_of
from bitgate.tools.reasons import next_step, reason, verdict_of
from bitgate.tools.redaction import redact
from bitgate.tools.runs.interpreter import side_environment
from bitgate.tools.runs.results import JobResult

if TYPE_CHECKING:
    from bitgate.tools.check_provenance import ProvenanceRequest
    from bitgate.tools.runs.context import RunContext

STEP: Final = "provenance"
PROMPTS: Final = 4
TOKENS: Final = 4
SHARED_HOST: Final = frozenset({"local", "torchrun"})
"""Launchers whose ranks see the same files as bitgate does."""
PASS_NEXT: Final = "Submit this evidence to its gates, or go on with the next check."
MOST_REASONS: Final = 12


async def run_provenance(context: RunContext, request: ProvenanceRequest) -> Finding:
    """One side after the other: two engines need not fit on a device. Files are hashed while the next one starts."""
    names = [request.side, *([request.other] if request.other else [])]
    looked: dict[str, Looked] = {}
    async with anyio.create_task_group() as group:
        for number, name in enumerate(names):
            await context.progress(number, len(names), f"{name}: running")
            side = context.project.side(name)
            model = context.project.model(request.model or side.model)
            result = await _run_side(context, side, model, request.workload)
            group.start_soon(_look, context, side, model, result, looked)
        await context.progress(len(names), len(names), "hashing and checking")
    return await anyio.to_thread.run_sync(_conclude, context, {name: looked[name] for name in names})


@dataclass(frozen=True)
class Looked:
    """A side that has run and was looked at."""

    found: SideProvenance
    side: SideRecord
    model: ModelRecord | None


async def _look(context: RunContext, side: Side, model: Model, result: JobResult, looked: dict[str, Looked]) -> None:
    found = await anyio.to_thread.run_sync(_examine, context, side, result)
    record = side_record(side, axes_of(side, adapter_of(side.engine)), result)
    looked[side.name] = Looked(found, record, model_record(model, result.ranks[0]))


async def _run_side(context: RunContext, side: Side, model: Model, workload: str | None) -> JobResult:
    adapter = adapter_of(side.engine)
    sequences = forced(_prompts(context, model, workload), TOKENS, seed=0)
    steps = [*_exercise(adapter, len(sequences)), _observe(side)]
    return await run_steps(context, side, model, sequences, steps, context.project.policy.run_timeout)


def _prompts(context: RunContext, model: Model, workload: str | None) -> list[TokenSequence]:
    """A few prompts: what is loaded lazily by the first forward is then there."""
    if workload is not None or len(context.project.config.workload) == 1:
        return [replace(s, response=()) for s in context.project.workload(workload).sequences()[:PROMPTS]]
    try:
        body = json.loads((model.path / "config.json").read_text(encoding="utf-8"))
        vocabulary = int(body.get("text_config", body)["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        vocabulary = 64
    return [TokenSequence(tuple((7 * i + 3 * n) % vocabulary for n in range(5 + i))) for i in range(PROMPTS)]


def _exercise(adapter: Adapter, count: int) -> list[Step]:
    """What the engine runs before it is looked at."""
    groups = [list(range(count))]
    steps: list[Step] = []
    if adapter.decodes:
        steps.append(Generate(name="generate", groups=groups, max_tokens=TOKENS, sampling=Sampling()))
    else:
        steps.append(Prefill(name="prefill", groups=groups))
    if adapter.trains:
        steps.append(TrainForward(name="train_forward", groups=groups))
    return steps


def _observe(side: Side) -> Provenance:
    expect = side.expect
    packages = {name.partition(".")[0] for name in (*expect.modules, *expect.commits, *expect.versions)}
    return Provenance(
        name=STEP,
        watched=sorted(name.replace("-", "_") for name in packages | _packages_of(side.source)),
        hash_files=side.launcher.kind not in SHARED_HOST,
        env_names=sorted({*side.env, *expect.env}),
        env_prefixes=[*NUMERIC_PREFIXES, *TRANSPORT],
    )


def _packages_of(source: Path | None) -> set[str]:
    if source is None or not source.is_dir():
        return set()
    return {path.parent.name for root in (source, source / "src") for path in root.glob("*/__init__.py")}


# --- reading and checking -------------------------------------------------------------------------------------------


def _examine(context: RunContext, side: Side, result: JobResult) -> SideProvenance:
    cache = HashCache(context.project.state / LIST_NAME)
    declared = _declared(side)
    ranks, checks = [], []
    for rank in result.ranks:
        seen = _read(result, rank.rank)
        if isinstance(seen, str):
            checks.append(Check("rank", "an observation of every rank", seen, "not_observed", rank.rank))
            continue
        facts = RankFacts(rank.rank, seen, look_at(seen, cache), rank.describe.stable)
        ranks.append(facts)
        checks += checks_of(facts, _with_source(declared, side, facts, cache))
    if not ranks:
        raise VerdictError("not_observed", f"{side.name}: {checks[0].observed}")
    return SideProvenance(side.name, tuple(ranks), (*checks, *between_ranks(ranks)))


def _read(result: JobResult, rank: int) -> Observation | str:
    """The observation, or why there is none that can be read."""
    name = result.ranks[rank].steps[STEP].info.get("file")
    try:
        return read_observation(result.rank_folder(rank) / str(name))
    except (OSError, ValueError) as error:
        return f"rank {rank} left no readable observation: {type(error).__name__}"


def _declared(side: Side) -> Declared:
    local = side.launcher.kind in SHARED_HOST
    return Declared(
        env=side.env,
        expect=side.expect,
        inherited=side_environment(side.python, {}, os.environ),
        source_tree=str(side.source) if side.source else None,
        launcher="local" if local else side.launcher.kind,
    )


def _with_source(declared: Declared, side: Side, facts: RankFacts, cache: HashCache) -> Declared:
    if side.source is None:
        return declared
    files = source_files(side.source, [m.name for m in facts.seen.modules or ()])
    digests = cache.blake3(str(path) for path in files.values()).digests
    known = {name: digests[str(path)] for name, path in files.items() if str(path) in digests}
    return replace(declared, source=known)


# --- concluding -----------------------------------------------------------------------------------------------------


def _conclude(context: RunContext, looked: Mapping[str, Looked]) -> Finding:
    found = {name: item.found for name, item in looked.items()}
    reasons = [r for side in found.values() for r in _reasons(side, named=len(found) > 1)]
    figures: dict[str, JsonValue] = {name: _figures(side) for name, side in found.items()}
    between = differences(*found.values()) if len(found) == 2 else None
    if between is not None:
        figures["differences"] = by_group(between)
    return Finding(
        verdict=verdict_of(reasons),
        reasons=tuple(reasons),
        summary=_summary(found, reasons),
        next=next_step(reasons) or PASS_NEXT,
        figures=_clean(figures),
        grade="observed",
        sides={name: item.side for name, item in looked.items()},
        models={name: item.model for name, item in looked.items() if item.model},
        artifacts=_artifacts(context, found, between),
    )


def _reasons(side: SideProvenance, *, named: bool) -> list[Reason]:
    """One reason a code, which says how many more there are; all checks are in the artifact."""
    by_code: dict[str, list[Check]] = {}
    for check in side.checks:
        if check.code:
            by_code.setdefault(check.code, []).append(check)
    prefix = f"side {side.side}: " if named else ""
    more = {code: f" (and {len(items) - 1} more)" if len(items) > 1 else "" for code, items in by_code.items()}
    return [
        reason(c, f"{prefix}{items[0].reason().detail}{more[c]}") for c, items in list(by_code.items())[:MOST_REASONS]
    ]


def _summary(found: Mapping[str, SideProvenance], reasons: Sequence[Reason]) -> str:
    checks = [check for side in found.values() for check in side.checks]
    who = " and ".join(found)
    ranks = sum(len(side.ranks) for side in found.values())
    if not reasons:
        return f"{who}: what runs in {ranks} rank{'s' if ranks != 1 else ''} is as declared; {len(checks)} checks."
    failed = sum(bool(check.code) for check in checks)
    return f"{who}: {failed} of {len(checks)} checks do not hold: {reasons[0].detail}"


def _figures(side: SideProvenance) -> dict[str, JsonValue]:
    first = side.ranks[0]
    verdicts = Counter(check.verdict for check in side.checks)
    known: Files = first.files
    return {
        "checks": {str(verdict): count for verdict, count in sorted(verdicts.items())},
        "ranks": len(side.ranks),
        "modules": len(first.seen.modules or ()),
        "libraries": len(first.seen.mapped or ()),
        "files_as_in_record": sum(file.as_recorded is True for file in known.known.values()),
        "files_read": known.read,
        "replaced": list[JsonValue](f"{r.function} by {r.module}" for r in (first.seen.replaced or ())[:8]),
        "provenance_digest": side.digest,
    }


def _artifacts(
    context: RunContext, found: Mapping[str, SideProvenance], between: Sequence[Any] | None
) -> tuple[ArtifactRef, ...]:
    bodies: dict[str, Any] = {f"{name}.provenance.json": redact(side.record()) for name, side in found.items()}
    bodies["fingerprint.json"] = fingerprint(list(found.values()))
    if between is not None:
        bodies["differences.json"] = redact([vars(item) for item in between])
    return tuple(
        context.artifacts.put_bytes(_json(body), name=name, media_type="application/json")
        for name, body in bodies.items()
    )


def _json(body: Any) -> bytes:
    return json.dumps(body, indent=1, allow_nan=False).encode("utf-8")


def _clean(figures: dict[str, JsonValue]) -> dict[str, JsonValue]:
    made = redact(figures)
    assert isinstance(made, dict)
    return made
