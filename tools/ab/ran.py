"""A run that has come to its end: its sides as evidence records them, and what fairness asks about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from bitgate.store.records import ModelRecord, SideRecord
from bitgate.tools.ab.conduct import LoadPlan, Score, WorkerSide
from bitgate.tools.ab.http_side import HttpSide
from bitgate.tools.ab.samples import Arm
from bitgate.tools.ab.vetoes import Check, SideFacts
from bitgate.tools.checks.execute import model_record, side_record
from bitgate.tools.checks.select import axes_of
from bitgate.tools.config.digests import digest_env
from bitgate.tools.config.sides import Side
from bitgate.tools.engines.adapters import adapter_of

T = TypeVar("T")
ARMS: Final[tuple[Arm, Arm]] = ("a", "b")


@dataclass(frozen=True)
class Ran:
    """A run that has come to its end: sides by arm, as they were and as they ran."""

    check: Check | str
    sides: Mapping[Arm, Side]
    servers: Mapping[Arm, WorkerSide | HttpSide]
    plan: LoadPlan
    workload: str
    score: Score


def records_of(ran: Ran) -> tuple[dict[Arm, SideRecord], dict[Arm, ModelRecord]]:
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


def by_name(ran: Ran, found: Mapping[Arm, T]) -> dict[str, T]:
    """Side name -> its record; of a side against itself there is one."""
    return {ran.sides[arm].name: record for arm, record in found.items()}


def facts_of(ran: Ran, arm: Arm, records: Mapping[Arm, SideRecord], models: Mapping[Arm, ModelRecord]) -> SideFacts:
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
    found = _with_around(facts, [item for item in around if isinstance(item, dict)])
    return found if talks(len(server.result.ranks), record) else replace(found, transport={})


def talks(ranks: int, record: SideRecord) -> bool:
    """Whether its processes talk at all: an engine sets NCCL's variables for a mode, and then needs none of them."""
    parallel = record.stable.get("parallel")
    degrees = parallel.values() if isinstance(parallel, dict) else ()
    return ranks > 1 or any(isinstance(n, int) and not isinstance(n, bool) and n > 1 for n in degrees)


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
