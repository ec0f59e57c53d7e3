"""ab_benchmark in the supervisor: starts both sides, has them take turns, and hands on what they left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from bitgate.store.records import Finding
from bitgate.tools.ab.conclude import conclude, conclude_breakdown
from bitgate.tools.ab.conduct import Call, LoadPlan, Score, Server, WorkerSide, planned, run_together
from bitgate.tools.ab.http_side import Endpoint, HttpSide
from bitgate.tools.ab.ran import ARMS, Ran
from bitgate.tools.ab.samples import Arm
from bitgate.tools.config.sides import Side
from bitgate.tools.config.workloads import sequences_digest
from bitgate.tools.errors import WorkerError

if TYPE_CHECKING:
    from bitgate.tools.ab_benchmark import AbRequest
    from bitgate.tools.runs.context import RunContext

NULL_AT_LEAST = 3


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
    concluded = conclude_breakdown if request.breakdown else conclude
    return await anyio.to_thread.run_sync(concluded, context, ran)


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
    return planned(request.blocks, 0 if same else null, request.warm_up, request.seed, one_side=same)


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
