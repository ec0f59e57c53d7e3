"""bisect_layer in the supervisor: watch, localise, record, experiment, conclude."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread

from bitgate.store.records import ArtifactRef, Finding, Reason
from bitgate.tools.bisect.cause import Localised, localise
from bitgate.tools.bisect.conclude import Outcome, everything, figures_of, reasons_of, summary_of
from bitgate.tools.bisect.graph import label
from bitgate.tools.bisect.heatmap import draw
from bitgate.tools.bisect.pairs import Pair, Plan, batch_plan, phase_plan, sides_plan, target_of
from bitgate.tools.bisect.probing import probe
from bitgate.tools.bisect.watch import Watch, watching
from bitgate.tools.checks.company import forced, long_prompts
from bitgate.tools.checks.execute import model_record, side_record
from bitgate.tools.checks.select import axes_of
from bitgate.tools.config.sides import Side
from bitgate.tools.config.workloads import TokenSequence
from bitgate.tools.engines.adapters import adapter_of
from bitgate.tools.errors import VerdictError
from bitgate.tools.reasons import next_step, reason, verdict_of

if TYPE_CHECKING:
    from bitgate.tools.bisect_layer import BisectRequest
    from bitgate.tools.runs.context import RunContext

CLEAN_NEXT: Final = "Submit this evidence to C6, or go on with run_compare check=layout."
FOUND_NEXT: Final = (
    "Run the repro script, change the operator it names on one side, and call bisect_layer again: the next cause, if "
    "any, shows then."
)


async def run_bisect(context: RunContext, request: BisectRequest) -> Finding:
    project = context.project
    names = [request.side, request.trainer] if request.check == "rollout_vs_trainer" else [request.side]
    sides = {name: project.side(name, request.options.get(name)) for name in names}
    first = sides[request.side]
    model, workload = project.model(request.model or first.model), project.workload(request.workload)
    sequences = list(workload.sequences())[: request.sequences]
    adapter = adapter_of(first.engine)
    sample = request.check == "rollout_vs_trainer" and adapter.decodes
    if request.check == "phase":
        # Prompts at and across the engine's block and chunk edges join, whatever the workload's own are.
        lengths = adapter.long_lengths(first, model, workload.max_tokens)
        sequences += long_prompts(sequences, lengths, request.seed)
    if not sample:
        sequences = list(forced(sequences, workload.max_tokens, request.seed))
    plan = plan_of(request, sides, sequences, workload.max_tokens)
    outcome = Outcome()
    async with watching(
        context, sides, model, plan, sequences, workload, sample=sample, timeout_s=project.policy.run_timeout
    ) as watch:
        folders = await _localise(context, watch, outcome)
    results = watch.results()
    outcome.weights = _unequal_weights(results, plan)
    if outcome.pair is not None and folders is not None:
        await context.progress(len(plan.starts) + 2, len(plan.starts) + 3, "experiments on the operators")
        await probe(context, watch, outcome, folders)
    return await anyio.to_thread.run_sync(_finding, context, request, watch, outcome)


def plan_of(request: BisectRequest, sides: Mapping[str, Side], sequences: list[TokenSequence], max_tokens: int) -> Plan:
    side = sides[request.side]
    adapter = adapter_of(side.engine)
    match request.check:
        case "batch":
            return batch_plan(side.name, len(sequences), decodes=adapter.decodes)
        case "phase":
            if not adapter.decodes:
                raise VerdictError("engine_unsupported", f"side {side.name}: engine {side.engine} has no decode phase")
            return phase_plan(
                side.name, len(sequences), adapter.variants(side, sequences, max_tokens).get("chunked_prefill")
            )
        case _:
            trainer = sides[request.trainer]
            packing = adapter_of(trainer.engine).packings[0]
            return sides_plan(side.name, trainer.name, len(sequences), decodes=adapter.decodes, packing=packing)


async def _localise(context: RunContext, watch: Watch, outcome: Outcome) -> tuple[Path | None, Path | None] | None:
    """Hashes every pair; records the operators around the first cause of the first pair that differs."""
    total = len(watch.plan.starts) + 3
    for pair in watch.plan.pairs:
        await context.progress(len(watch.plan.starts), total, f"hashing every point: {pair.label}")
        a, b = await watch.hash(pair.a), await watch.hash(pair.b)
        found = await anyio.to_thread.run_sync(localise, a, b)
        outcome.hashed[pair.label] = found
        outcome.unproved |= _unproved(watch, pair)
        for leg, seen in ((pair.a, a), (pair.b, b)):
            outcome.replicas |= {f"{leg.name}, {point}": why for point, why in seen.replicas.items()}
        if outcome.pair is None and found.different:
            outcome.pair, outcome.found = pair, found
    outcome.hashed_bytes = sum(seen.bytes for seen in watch.observations.values())
    outcome.effects, outcome.unstable = watch.effects, watch.unstable
    cause = outcome.found.cause if outcome.found is not None else None
    if outcome.pair is None or outcome.found is None or cause is None or cause.state != "culprit":
        return None
    if cause.node.kind == "input":
        outcome.probe = given_otherwise(outcome.found)
        return None
    await context.progress(len(watch.plan.starts) + 1, total, f"recording the operators of {label(cause.node.point)}")
    folders = await watch.record(outcome.pair, target_of(cause.node, cause.row, outcome.found.layers))
    outcome.recorded_bytes = sum(f.stat().st_size for folder in folders if folder for f in folder.iterdir())
    return folders


def given_otherwise(found: Localised) -> dict[str, Any]:
    """The integers that the model is given are others: no operator is to blame, and none is recorded."""
    assert found.cause is not None
    name = found.cause.node.point[1]
    said = f"the {name.replace('_', ' ')} handed to the model are others in {found.cause.rows} rows"
    return {"class": "layout_mask", "mechanism": said, "excluded": [], "experiments": []}


def _unproved(watch: Watch, pair: Pair) -> dict[str, str]:
    """A pair that stands for chunks shows nothing when the engine cut no prompt."""
    if pair.b.name != "chunked":
        return {}
    chunks = watch.sessions[pair.b.engine].info(pair.b.hashing().name).get("prefill_chunks")
    return (
        {} if isinstance(chunks, int) and chunks > 1 else {pair.label: f"no prompt was cut (prefill_chunks = {chunks})"}
    )


def _unequal_weights(results: Mapping[str, Any], plan: Plan) -> str | None:
    """Tensors of which the sides hold other bytes; what cannot be read back says nothing."""
    held = [
        (name, result.ranks[0].weights)
        for name, result in results.items()
        if result.ranks[0].weights is not None and result.ranks[0].weights.by_name
    ]
    for (ours, a), (theirs, b) in zip(held, held[1:], strict=False):
        unlike = [n for n, digest in a.by_name.items() if b.by_name.get(n, digest) != digest]
        if unlike:
            return f"{ours} and {theirs} hold other bytes in {len(unlike)} tensors, first {unlike[0]}"
    return None


def _finding(context: RunContext, request: BisectRequest, watch: Watch, outcome: Outcome) -> Finding:
    results = watch.results()
    reasons = _few(reasons_of(outcome))
    verdict = verdict_of(reasons)
    records = {}
    for start in watch.plan.starts:
        side, result = watch.sides[start.side], results[start.name]
        if start.name == start.side:
            records[start.name] = side_record(side, axes_of(side, adapter_of(side.engine)), result)
    models = {name: model_record(watch.model, result.ranks[0]) for name, result in results.items() if name in records}
    return Finding(
        verdict=verdict,
        reasons=reasons,
        summary=summary_of(outcome, verdict),
        next=_next(outcome, reasons),
        figures=figures_of(outcome, tuple(records)),
        grade=watch.grade(),
        check=request.check,
        sides=records,
        models={name: record for name, record in models.items() if record is not None},
        artifacts=_artifacts(context, outcome),
    )


def _few(reasons: list[Reason]) -> tuple[Reason, ...]:
    by_code: dict[str, list[Reason]] = {}
    for item in reasons:
        by_code.setdefault(item.code, []).append(item)
    return tuple(
        reason(code, f"{found[0].detail} (and {len(found) - 1} more)") if len(found) > 1 else found[0]
        for code, found in by_code.items()
    )


def _next(outcome: Outcome, reasons: tuple[Reason, ...]) -> str:
    if not reasons:
        return CLEAN_NEXT
    if any(item.code == "first_cause_found" for item in reasons):
        return FOUND_NEXT
    return next_step(reasons)


def _artifacts(context: RunContext, outcome: Outcome) -> tuple[ArtifactRef, ...]:
    folder = context.folder / "artifacts"
    folder.mkdir(exist_ok=True)
    text = json.dumps(everything(outcome), indent=1, allow_nan=False)
    made = [context.artifacts.put_bytes(text.encode("utf-8"), name="bisect.json", media_type="application/json")]
    shown: Localised | None = outcome.found or next(iter(outcome.hashed.values()), None)
    if shown is not None and shown.compared:
        title = outcome.pair.label if outcome.pair else next(iter(outcome.hashed))
        draw(shown, title, folder / "heatmap.png")
        made.append(context.artifacts.put_file(folder / "heatmap.png", name="heatmap.png", media_type="image/png"))
    for name in ("repro.py", "tensors.safetensors"):
        path = context.folder / "repro" / name
        if path.exists():
            media = "text/x-python" if name.endswith(".py") else "application/octet-stream"
            made.append(context.artifacts.put_file(path, name=name, media_type=media))
    return tuple(made)
