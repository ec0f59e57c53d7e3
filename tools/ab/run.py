"""ab_benchmark in the supervisor: starts both sides, has them take turns, and concludes from what they left."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread
from pydantic import JsonValue, ValidationError

from bitgate.store.records import ArtifactRef, Finding, ModelRecord, Reason, SideRecord
from bitgate.tools.ab.analysis import Outcome, block_rates, compared, judged, outcome, rounded
from bitgate.tools.ab.conduct import Call, LoadPlan, Score, Server, WorkerSide, planned, run_together
from bitgate.tools.ab.http_side import Endpoint, HttpSide
from bitgate.tools.ab.known import LedgerFacts
from bitgate.tools.ab.operators import breakdown_figures, breakdown_summary
from bitgate.tools.ab.plots import draw
from bitgate.tools.ab.samples import Arm, Turn, read_raw, side_figures
from bitgate.tools.ab.vetoes import Check, SideFacts, Trial, vetoes
from bitgate.tools.checks.execute import model_record, side_record
from bitgate.tools.checks.select import axes_of
from bitgate.tools.config.digests import digest_env
from bitgate.tools.config.sides import Side
from bitgate.tools.config.workloads import sequences_digest
from bitgate.tools.engines.adapters import adapter_of
from bitgate.tools.errors import WorkerError
from bitgate.tools.reasons import next_step, reason, verdict_of

if TYPE_CHECKING:
    from bitgate.tools.ab_benchmark import AbRequest
    from bitgate.tools.runs.context import RunContext

ARMS: tuple[Arm, Arm] = ("a", "b")
NULL_AT_LEAST = 3


@dataclass(frozen=True)
class Ran:
    """A run that has come to its end: sides by arm, as they were and as they ran."""

    check: Check | str
    sides: Mapping[Arm, Side]
    servers: Mapping[Arm, WorkerSide | HttpSide]
    plan: LoadPlan
    workload: str
    score: Score


async def run_benchmark(context: RunContext, request: AbRequest) -> Finding:
    from bitgate.tools.ab_benchmark import names_of

    names = names_of(request)
    sides = {arm: context.project.side(name, request.options.get(name)) for arm, name in zip(ARMS, names, strict=False)}
    workload = context.project.workload(request.workload)
    sequences = tuple(replace(s, response=()) for s in workload.sequences())
    load = LoadPlan(sequences, workload.max_tokens, workload.sampling, request.concurrency)
    # What a frozen band was measured with: another load has another speed.
    identity = f"{sequences_digest(sequences)[:32]}-{load.max_tokens}-{load.concurrency or len(sequences)}"
    servers = _servers(context, request, sides, load)
    for server in servers.values():
        if isinstance(server, HttpSide):
            await server.start()
    score = await _run(context, servers, _calls(request, servers), request.turn_s)
    ran = Ran(_check(request, names), sides, servers, load, identity, score)
    conclude = _conclude_breakdown if request.breakdown else _conclude
    return await anyio.to_thread.run_sync(conclude, context, ran)


def _check(request: AbRequest, names: Sequence[str]) -> str:
    if request.breakdown:
        return "breakdown"
    if names[0] == names[1]:
        return "aa"
    return "floor" if request.other is None else "ab"


def _calls(request: AbRequest, servers: Mapping[Arm, Any]) -> list[Call]:
    if request.breakdown:
        warm = [Call("warm_up", arm, arm) for _ in range(request.warm_up) for arm in servers]
        return warm + [Call("profile", arm, arm) for arm in servers]
    null = request.null_blocks or max(request.blocks, NULL_AT_LEAST)
    same = servers["a"].side.name == servers["b"].side.name
    return planned(request.blocks, 0 if same else null, request.warm_up, request.seed)


def _servers(
    context: RunContext, request: AbRequest, sides: Mapping[Arm, Side], load: LoadPlan
) -> dict[Arm, WorkerSide | HttpSide]:
    """A side against itself is two processes, so that what differs between two processes is part of the noise."""
    turns = context.folder / "turns"
    turns.mkdir()
    made: dict[Arm, WorkerSide | HttpSide] = {}
    for arm, side in sides.items():
        if side.engine == "server":
            try:
                endpoint = Endpoint.of(side.url or "")
            except ValueError as error:
                raise WorkerError("server_unreachable", f"side {side.name}: {error}") from error
            made[arm] = HttpSide(side, load, context.folder / f"http-{arm}", endpoint)
        else:
            model = context.project.model(request.model or side.model)
            made[arm] = WorkerSide(context, side, model, load, arm, turns)
    return made


async def _run(
    context: RunContext, servers: Mapping[Arm, WorkerSide | HttpSide], calls: Sequence[Call], turn_s: float
) -> Score:
    workers = [server for server in servers.values() if isinstance(server, WorkerSide)]
    await context.progress(0, len(calls), "starting both engines")
    everyone: dict[Arm, Server] = dict(servers)

    async def told(done: int, call: Call) -> None:
        await context.progress(done, len(calls), f"{call.phase.replace('_', ' ')}: turn {done} of {len(calls)}")

    return await run_together(workers, everyone, calls, turn_s, told)


# --- concluding -----------------------------------------------------------------------------------------------------


def _conclude(context: RunContext, ran: Ran) -> Finding:
    records, models = _records(ran)
    check: Check = "aa" if ran.check == "aa" else "floor" if ran.check == "floor" else "ab"
    measured = compared([turn for turn in ran.score.turns if turn.phase == "measured"])
    null = compared([turn for turn in ran.score.turns if turn.phase == "null"])
    result = outcome(measured, None) if check == "aa" else outcome(null, measured)
    trial = Trial(
        check,
        _facts(ran, "a", records, models),
        _facts(ran, "b", records, models),
        ran.score.turns,
        ran.plan.max_tokens,
        _known(context),
        ran.workload,
        result.main.interval.ratio if result.main else None,
    )
    floor = context.project.policy.rollout_floor
    reasons = [*vetoes(trial), *judged(check, result, floor)]
    if measured is None and not reasons:
        reasons.append(reason("too_few_pairs", "no block of turns could be evaluated"))
    return Finding(
        verdict=verdict_of(reasons),
        reasons=tuple(reasons),
        summary=_summary(check, trial, result, reasons, floor),
        next=next_step(reasons) or "Submit this evidence to its gate, or name it in propose_baseline(tuning=[…]).",
        figures=_figures(check, ran, trial, result, floor),
        grade="observed" if all(isinstance(s, WorkerSide) for s in ran.servers.values()) else "attested",
        check=check,
        sides=_by_name(records),
        models=_by_name(models),
        artifacts=_artifacts(context, ran, result, floor if check == "floor" else None),
    )


def _conclude_breakdown(context: RunContext, ran: Ran) -> Finding:
    records, models = _records(ran)
    profiles = {ran.sides[turn.arm].name: turn for turn in ran.score.turns if turn.phase == "profile"}
    operators = {name: turn.record.operators or {} for name, turn in profiles.items()}
    figures = breakdown_figures(operators, {name: turn.record.seconds for name, turn in profiles.items()})
    reasons = [] if all(found.get("classes") for found in operators.values()) else [
        reason("not_observed", "the profiler reported no operator")
    ]  # fmt: skip
    body = json.dumps(operators, indent=1, allow_nan=False).encode("utf-8")
    return Finding(
        verdict=verdict_of(reasons),
        reasons=tuple(reasons),
        summary=breakdown_summary(figures),
        next=next_step(reasons) or "Win back time where the difference is greatest; then measure without breakdown.",
        figures=figures,
        grade="observed",
        check="breakdown",
        sides=_by_name(records),
        models=_by_name(models),
        artifacts=(
            context.artifacts.put_bytes(body, name="operators.json", media_type="application/json"),
            _samples(context, ran),
        ),
    )


def _records(ran: Ran) -> tuple[dict[Arm, SideRecord], dict[Arm, ModelRecord]]:
    records: dict[Arm, SideRecord] = {}
    models: dict[Arm, ModelRecord] = {}
    for arm, server in ran.servers.items():
        side = ran.sides[arm]
        axes = axes_of(side, adapter_of(side.engine))
        if isinstance(server, HttpSide):
            records[arm] = _server_record(side, server, axes)
            continue
        assert server.result is not None  # its job has ended, or an error was raised
        records[arm] = side_record(side, axes, server.result)
        model = model_record(server.model, server.result.ranks[0])
        if model is not None:
            models[arm] = model
    return records, models


def _server_record(side: Side, server: HttpSide, axes: Sequence[str]) -> SideRecord:
    return SideRecord(
        name=side.name,
        engine=side.engine,
        digest=side.digest(server.stable, tuple(axes)),
        axes=tuple(axes),
        env=digest_env(side.env),
        stable=server.stable,
        volatile={"prefix_cache_reset": server.resets},
    )


def _by_name(found: Mapping[Arm, Any]) -> dict[str, Any]:
    return {record.name if isinstance(record, SideRecord) else f"{arm}": record for arm, record in found.items()}


def _facts(ran: Ran, arm: Arm, records: Mapping[Arm, SideRecord], models: Mapping[Arm, ModelRecord]) -> SideFacts:
    side, record, model, server = ran.sides[arm], records[arm], models.get(arm), ran.servers[arm]
    facts = SideFacts(
        side.name,
        record.digest,
        stable=record.stable,
        options=record.options,
        expect=side.expect,
        plays_baseline=side.name == "baseline" or side.owner == "baseline",
        architecture_digest=model.architecture_digest if model else None,
        weights_digest=model.weights_digest if model else None,
    )
    if isinstance(server, HttpSide) or server.result is None:
        return facts
    around = [rank.steps["load"].info.get("around") for rank in server.result.ranks if "load" in rank.steps]
    return _with_around(facts, [item for item in around if isinstance(item, dict)])


def _with_around(facts: SideFacts, around: Sequence[Mapping[str, Any]]) -> SideFacts:
    """What any rank has loaded counts; transport and image are rank 0's."""
    if not around:
        return facts
    libraries = [item["libraries"] for item in around]
    return replace(
        facts,
        transport=dict(around[0]["transport"]),
        image=around[0]["image"].get("digest") if isinstance(around[0]["image"], dict) else None,
        container=bool(around[0]["image"].get("container")),
        invariant_modules=tuple(sorted({name for item in around for name in item["modules"]})),
        invariant_libraries=None
        if any(item is None for item in libraries)
        else tuple(sorted({name for item in libraries for name in item})),
    )


def _known(context: RunContext) -> LedgerFacts:
    try:
        return LedgerFacts.model_validate(context.known)
    except ValidationError:
        return LedgerFacts()


def _summary(check: Check, trial: Trial, result: Outcome, reasons: Sequence[Reason], floor: float) -> str:
    shown = result.main or result.null
    if shown is None:
        return f"No ratio: {reasons[0].detail}"
    found = shown.interval
    ratio = f"{found.ratio:.3f} (interval {found.ratio_low:.3f} to {found.ratio_high:.3f}, {found.pairs} pairs)"
    said = {
        "aa": f"{trial.a.name} against itself: {ratio}",
        "ab": f"{trial.a.name} / {trial.b.name}: {ratio}: {result.claim}",
        "floor": f"{trial.a.name} runs at {ratio} of {trial.b.name}; the floor is {floor:g}",
    }[check]
    deciding = [r for r in reasons if verdict_of([r]) == verdict_of(reasons)]
    return f"{said}." if not reasons else f"{said}. {verdict_of(reasons).capitalize()}: {deciding[0].detail}."


def _figures(check: Check, ran: Ran, trial: Trial, result: Outcome, floor: float) -> dict[str, JsonValue]:
    shown = result.main or result.null
    measured = [turn for turn in ran.score.turns if turn.phase == "measured"]
    figures: dict[str, JsonValue] = dict(shown.figures()) if shown else {}
    figures["claim"] = result.claim
    figures["detectable"] = rounded(result.detectable) if isfinite(result.detectable) else None
    if check != "aa" and result.null is not None:
        figures["null_run"] = result.null.figures()
    if check == "floor":
        figures["floor"] = floor
    for arm in ARMS:
        turns = [turn for turn in measured if turn.arm == arm]
        label = ran.sides[arm].name if ran.sides["a"].name != ran.sides["b"].name else f"{ran.sides[arm].name} ({arm})"
        if turns:
            figures[label] = side_figures(turns)
    figures["workload"] = ran.workload
    figures["rounds_per_turn"] = ran.score.rounds
    figures["blocks_in_order"] = list(block_rates(measured)[:24])
    figures["differences"] = _differences(trial)
    figures["foreign_cpu"] = _foreign(measured)
    return figures


def _differences(trial: Trial) -> dict[str, JsonValue]:
    """Kernels of the two sides that are not the same, declared or not: the reader sees what was compared."""
    from bitgate.tools.ab.vetoes import kernel_facts

    one, two = kernel_facts(trial.a), kernel_facts(trial.b)
    names = [n for n in sorted({*one, *two}) if one.get(n) != two.get(n)]
    return {name: [one.get(name), two.get(name)] for name in names[:20]}


def _foreign(turns: Sequence[Turn]) -> dict[str, JsonValue]:
    found: dict[str, JsonValue] = {}
    for arm in ARMS:
        shares = [share for t in turns if t.arm == arm and (share := t.record.foreign) is not None]
        found[arm] = rounded(sum(shares) / len(shares)) if shares else None
    return found


def _artifacts(context: RunContext, ran: Ran, result: Outcome, floor: float | None) -> tuple[ArtifactRef, ...]:
    folder = context.folder / "artifacts"
    folder.mkdir(exist_ok=True)
    names = (ran.sides["a"].name, ran.sides["b"].name)
    draw(ran.score.turns, result, names, floor, folder / "ab.png")
    lines = [
        {"phase": t.phase, "place": t.arm, "rate": rounded(t.rate), **t.record.model_dump(mode="json")}
        for t in ran.score.turns
    ]
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
    return (
        context.artifacts.put_file(folder / "ab.png", name="ab.png", media_type="image/png"),
        context.artifacts.put_bytes(text.encode("utf-8"), name="turns.jsonl", media_type="application/jsonl"),
        _samples(context, ran),
    )


def _samples(context: RunContext, ran: Ran) -> ArtifactRef:
    """Raw samples of all turns in one safetensors file: `<turn>.<array>` (docs/ab_benchmark.md)."""
    from safetensors.numpy import save_file

    tensors: dict[str, Any] = {}
    for turn in ran.score.turns:
        server = ran.servers[turn.record.arm]
        raw = read_raw(server.samples / f"turn-{turn.record.turn:05d}.safetensors")
        tensors |= {f"{turn.record.turn:05d}.{name}": array for name, array in raw.items()}
    path = Path(context.folder) / "artifacts" / "samples.safetensors"
    path.parent.mkdir(exist_ok=True)
    save_file(tensors, path)
    return context.artifacts.put_file(path, name="samples.safetensors", media_type="application/octet-stream")
