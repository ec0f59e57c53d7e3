"""The ledger as gates read it: evidence by what it is about, through the store's indexes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bitgate.gates.conditions import Divergence
from bitgate.gates.matching import Seen
from bitgate.gates.spec import Need
from bitgate.store.records import Evidence, Verdict
from bitgate.store.schema import GATE_SIDES
from bitgate.store.store import Store

WINDOW: Final = 25
"""Results looked at for one question, newest first: they are about exactly today's side, so grade and axes are left."""

_COLUMNS: Final = "seq, hash, actor, at, body"


class StoreSource:
    """An EvidenceSource over a store. Reads each row once; build one for each look."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_id: dict[str, Seen | None] = {}
        self._asked: dict[tuple[tuple[tuple[str, str], ...], int], list[Seen]] = {}

    def bound(self, need: Need, digests: Mapping[str, str], verdict: Verdict) -> Sequence[Seen]:
        indexed = {name: digest for name, digest in digests.items() if name in GATE_SIDES}
        found = self._query(
            _keys(need) | {"verdict": verdict} | indexed, WINDOW if len(indexed) == len(digests) else 200
        )
        return found if len(indexed) == len(digests) else [seen for seen in found if _has(seen.evidence, digests)]

    def newest(self, need: Need) -> Seen | None:
        found = self._query(_keys(need), 1)
        return found[0] if found else None

    def by_id(self, evidence_id: str) -> Seen | None:
        if evidence_id not in self._by_id:
            sql = f"SELECT {_COLUMNS} FROM entries WHERE subject = :id AND kind = 'evidence'"
            found = self._store.ledger.rows(sql, {"id": evidence_id})
            self._by_id[evidence_id] = self._seen(found[0]) if found else None
        return self._by_id[evidence_id]

    def _query(self, keys: Mapping[str, str], limit: int) -> list[Seen]:
        """Remembered: gates share needs, such as a side's provenance."""
        question = (tuple(keys.items()), limit)
        if question not in self._asked:
            self._asked[question] = self._ask(keys, limit)
        return self._asked[question]

    def _ask(self, keys: Mapping[str, str], limit: int) -> list[Seen]:
        conditions = " AND ".join(f'k."{name}" = :{name}' for name in keys)
        columns = ", ".join(f"e.{name}" for name in _COLUMNS.split(", "))
        sql = f"""SELECT {columns} FROM evidence_keys AS k {_index(keys)} JOIN entries AS e ON e.seq = k.seq
          WHERE {conditions} ORDER BY k.seq DESC LIMIT :limit"""
        return [self._seen(row) for row in self._store.ledger.rows(sql, {**keys, "limit": limit})]

    def _seen(self, row: tuple[Any, ...]) -> Seen:
        seq, digest, actor, at, body = row
        return Seen(Evidence.model_validate_json(body), seq, digest, actor, at)


def _keys(need: Need) -> dict[str, str]:
    return {"tool": need.tool} | ({"check": need.check} if need.check else {})


def _index(keys: Mapping[str, str]) -> str:
    """The index that finds a side's results at once: left alone, SQLite may walk every result of the tool instead."""
    side = next((name for name in GATE_SIDES if name in keys), None)
    return f"INDEXED BY evidence_of_{side}" if side else ""


def _has(evidence: Evidence, digests: Mapping[str, str]) -> bool:
    return digests.items() <= {record.name: record.digest for record in evidence.sides.values()}.items()


BISECTED_AS: Final[Mapping[str, str]] = {"repeat": "batch", "layout": "batch"}
"""Check of run_compare -> check of bisect_layer that localises its failures, where it has another name."""


_FAILED: Final = """SELECT subject, MAX(seq) FROM (
  SELECT e.subject, k.seq, k."check", (
    SELECT json_group_array(json_array(value ->> '$.digest', value ->> '$.configured'))
    FROM json_each(e.body, '$.sides')) AS sides
  FROM evidence_keys AS k JOIN entries AS e ON e.seq = k.seq WHERE k.tool = 'run_compare' AND k.verdict = 'fail'
) GROUP BY "check", sides ORDER BY 2 DESC"""
"""The newest failure of each check under each set of sides: however many there are, none is forgotten."""


def unexplained_failures(store: Store) -> list[Divergence]:
    """Failed comparisons, newest first, for which no localisation of the same sides holds a repro."""
    newest: dict[tuple[str, frozenset[str]], Evidence] = {}
    for evidence_id, _ in store.ledger.rows(_FAILED):
        evidence = store.get_evidence(evidence_id)
        if _is_configured(evidence):
            newest.setdefault((_bisected_as(evidence), _sides(evidence)), evidence)
    return [Divergence(found.id, _bisection(found)) for found in newest.values() if not _has_repro(store, found)]


def _has_repro(store: Store, failed: Evidence) -> bool:
    """Whether bisect_layer left a script about the same check and sides; looked up by a side that gates are about."""
    side = next(record for record in failed.sides.values() if record.name in GATE_SIDES)
    sql = f"""SELECT e.body FROM evidence_keys AS k INDEXED BY evidence_of_{side.name}
      JOIN entries AS e ON e.seq = k.seq
      WHERE k.{side.name} = :digest AND k.tool = 'bisect_layer' AND k."check" = :check"""
    found = store.ledger.rows(sql, {"digest": side.digest, "check": _bisected_as(failed)})
    localised = (Evidence.model_validate_json(body) for (body,) in found)
    return any(
        _sides(failed) <= _sides(evidence) and any("repro" in artifact.name for artifact in evidence.artifacts)
        for evidence in localised
    )


def _bisected_as(evidence: Evidence) -> str:
    check = evidence.check or ""
    return BISECTED_AS.get(check, check)


def _bisection(evidence: Evidence) -> str:
    """The call that would localise this failure, on the sides and the model that failed."""
    check = _bisected_as(evidence)
    named = ("side", "trainer", "model") if check == "rollout_vs_trainer" else ("side", "model")
    given = {name: evidence.request.get(name) for name in named}
    words = "".join(f', {name}="{value}"' for name, value in given.items() if isinstance(value, str))
    return f'bisect_layer(check="{check}"{words})'


def _is_configured(evidence: Evidence) -> bool:
    """A divergence of the project's own sides; one under options tried for a single run is an experiment."""
    records = evidence.sides.values()
    return any(record.name in GATE_SIDES for record in records) and all(record.configured for record in records)


def _sides(evidence: Evidence) -> frozenset[str]:
    return frozenset(record.digest for record in evidence.sides.values())
