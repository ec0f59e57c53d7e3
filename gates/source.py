"""The ledger as gates read it: evidence by what it is about, through the store's indexes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

from bitgate.gates.matching import Seen
from bitgate.gates.spec import Need
from bitgate.store.records import Evidence, Verdict
from bitgate.store.schema import GATE_SIDES, field
from bitgate.store.store import Store

WINDOW: Final = 25
"""Results looked at per question, newest first. They are already about exactly today's side; grade and axes are left."""

_COLUMNS: Final = "seq, hash, actor, at, body"


class StoreSource:
    """An EvidenceSource over a store. Reads each row once; build one for each look."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_id: dict[str, Seen | None] = {}

    def bound(self, need: Need, digests: Mapping[str, str], verdict: Verdict) -> Sequence[Seen]:
        side = next((name for name in GATE_SIDES if name in digests), None)
        if need.sides and side is None:
            return self._named(need, digests, verdict)
        where = {"tool": need.tool, "verdict": verdict} | ({"check": need.check} if need.check else {})
        if side is not None:
            where[f"sides.{side}.digest"] = digests[side]
        return self._query(where, WINDOW)

    def _named(self, need: Need, digests: Mapping[str, str], verdict: Verdict) -> Sequence[Seen]:
        """Sides under names of the project's own: no index knows them, so the newest results are looked through."""
        where = {"tool": need.tool, "verdict": verdict} | ({"check": need.check} if need.check else {})
        return [seen for seen in self._query(where, 200) if _has(seen.evidence, digests)]

    def newest(self, need: Need) -> Seen | None:
        found = self._query({"tool": need.tool} | ({"check": need.check} if need.check else {}), 1)
        return found[0] if found else None

    def by_id(self, evidence_id: str) -> Seen | None:
        if evidence_id not in self._by_id:
            sql = f"SELECT {_COLUMNS} FROM entries WHERE subject = :id AND kind = 'evidence'"
            found = self._store.ledger.rows(sql, {"id": evidence_id})
            self._by_id[evidence_id] = self._seen(found[0]) if found else None
        return self._by_id[evidence_id]

    def _query(self, where: Mapping[str, str], limit: int) -> list[Seen]:
        conditions = " AND ".join(f"{field(name)} = :v{n}" for n, name in enumerate(where))
        values: dict[str, Any] = {f"v{n}": value for n, value in enumerate(where.values())}
        sql = f"SELECT {_COLUMNS} FROM entries WHERE kind = 'evidence' AND {conditions} ORDER BY seq DESC LIMIT :limit"
        return [self._seen(row) for row in self._store.ledger.rows(sql, values | {"limit": limit})]

    def _seen(self, row: tuple[Any, ...]) -> Seen:
        seq, digest, actor, at, body = row
        return Seen(Evidence.model_validate_json(body), seq, digest, actor, at)


def _has(evidence: Evidence, digests: Mapping[str, str]) -> bool:
    return digests.items() <= {record.name: record.digest for record in evidence.sides.values()}.items()


def unexplained_failures(store: Store, limit: int = 100) -> list[str]:
    """Failed comparisons, newest first, for which no bisect_layer evidence about the same sides holds a repro."""
    failed = [e for e in store.list_evidence(tool="run_compare", verdict="fail", limit=limit) if _is_configured(e)]
    has_repro = cache(_repro_finder(store, limit))
    newest: dict[frozenset[str], str] = {}
    for evidence in failed:
        newest.setdefault(_sides(evidence), evidence.id)
    return [evidence_id for sides, evidence_id in newest.items() if not has_repro(sides)]


def _repro_finder(store: Store, limit: int) -> Callable[[frozenset[str]], bool]:
    bisected = store.list_evidence(tool="bisect_layer", limit=limit)
    explained = {_sides(e) for e in bisected if any("repro" in artifact.name for artifact in e.artifacts)}
    return lambda sides: any(sides <= known for known in explained)


def _is_configured(evidence: Evidence) -> bool:
    """A divergence of the project's own sides; one under options tried for a single run is an experiment."""
    records = evidence.sides.values()
    return any(record.name in GATE_SIDES for record in records) and all(record.configured for record in records)


def _sides(evidence: Evidence) -> frozenset[str]:
    return frozenset(record.digest for record in evidence.sides.values())
