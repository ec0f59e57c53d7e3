"""Which evidence counts for a need, today: identity, grade, coverage, age, who recorded it, and no counterexample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from bitgate.gates.conditions import EVIDENCE_CONDITIONS
from bitgate.gates.identity import model_mismatch, side_mismatch, unknown_identities
from bitgate.gates.roles import role_of
from bitgate.gates.spec import Need
from bitgate.gates.today import Today
from bitgate.store.records import Evidence, Verdict


@dataclass(frozen=True)
class Seen:
    """Evidence as the chain holds it."""

    evidence: Evidence
    seq: int
    row: str
    actor: str
    at: str


class EvidenceSource(Protocol):
    """The ledger's evidence, as far as matching asks. Everything newest first."""

    def bound(self, need: Need, digests: dict[str, str], verdict: Verdict) -> Sequence[Seen]:
        """Evidence of the need's tool and check with this verdict whose named sides have these digests."""
        ...

    def newest(self, need: Need) -> Seen | None:
        """The newest evidence of the need's tool and check, whatever it shows and is about."""
        ...

    def by_id(self, evidence_id: str) -> Seen | None: ...


@dataclass(frozen=True)
class Match:
    """What the ledger holds for one need. Exactly one of `seen` (it is met), `counter` and `why` explains it."""

    need: Need
    seen: Seen | None = None
    counter: Seen | None = None
    """A result under today's digests that says no."""
    why: str = ""
    changes: tuple[str, ...] = ()
    """Identity changes that keep the newest evidence from counting."""
    notes: tuple[str, ...] = ()

    @property
    def met(self) -> bool:
        return self.seen is not None and self.counter is None


NEGATIVE: tuple[Verdict, ...] = ("fail", "invalid", "inconclusive")


def match(need: Need, today: Today, source: EvidenceSource, preferred: Sequence[str] = ()) -> Match:
    """The evidence that meets `need` today, preferring evidence already relied on, or why there is none."""
    if need.tool not in today.tools:
        return Match(need, why=f"the tool {need.tool} does not exist in this version; nothing can pass this need yet")
    unknown = unknown_identities(need.sides, (need.model,) if need.model else (), today)
    if unknown:
        return Match(need, why="; ".join(unknown), changes=tuple(unknown))
    return _decided(need, today, source, preferred)


def _decided(need: Need, today: Today, source: EvidenceSource, preferred: Sequence[str]) -> Match:
    positive, counter = _best(need, today, source, preferred), _counterexample(need, today, source)
    if counter and need.on_fail == "newest":
        newer = positive is None or counter.seq > positive.seq
        notes = (f"{counter.evidence.id} under the same digests: {counter.evidence.verdict}",)
        return Match(need, counter=counter, why=_says(counter)) if newer else Match(need, seen=positive, notes=notes)
    if counter and counter.evidence.verdict == "fail":
        contradicted = (
            f"; {positive.evidence.id} passed under the same digests, which does not explain it" if positive else ""
        )
        return Match(need, counter=counter, why=_says(counter) + contradicted)
    return Match(need, seen=positive) if positive else _absent(need, today, source)


def _best(need: Need, today: Today, source: EvidenceSource, preferred: Sequence[str]) -> Seen | None:
    kept = (seen for seen in map(source.by_id, preferred) if seen and is_for(seen.evidence, need))
    known = next((seen for seen in kept if not objections(seen, need, today)), None)
    return known or max(_candidates(need, today, source, need.accepts), key=lambda seen: seen.seq, default=None)


def _candidates(need: Need, today: Today, source: EvidenceSource, verdicts: Sequence[Verdict]) -> list[Seen]:
    digests = {side.name: side.record.digest for role in need.sides if (side := today.sides[role]).record}
    found = (
        next((s for s in source.bound(need, digests, v) if not objections(s, need, today, verdicts)), None)
        for v in verdicts
    )
    return [seen for seen in found if seen]


def _counterexample(need: Need, today: Today, source: EvidenceSource) -> Seen | None:
    """The newest result about today's identities that says no, grade and coverage aside: a failure needs none."""
    digests = {side.name: side.record.digest for role in need.sides if (side := today.sides[role]).record}
    verdicts = [v for v in NEGATIVE if v not in need.accepts and (v == "fail" or need.on_fail == "newest")]
    found = [
        s for v in verdicts for s in source.bound(need, digests, v) if not identity_objections(s.evidence, need, today)
    ]
    return max(found, key=lambda seen: seen.seq, default=None)


def is_for(evidence: Evidence, need: Need) -> bool:
    return evidence.tool == need.tool and (need.check is None or evidence.check == need.check)


def identity_objections(evidence: Evidence, need: Need, today: Today) -> list[str]:
    """How the evidence's sides and model are not today's."""
    found = [text for role in need.sides for text in side_mismatch(role, evidence, today.sides[role])]
    return found + (model_mismatch(need.model, evidence, today.models[need.model]) if need.model else [])


def objections(seen: Seen, need: Need, today: Today, verdicts: Sequence[Verdict] = ()) -> list[str]:
    """Every reason why this evidence does not meet the need; empty when it does."""
    evidence = seen.evidence
    found = identity_objections(evidence, need, today)
    if evidence.verdict not in (verdicts or need.accepts):
        found.append(_says(seen))
    if need.grade == "observed" and evidence.grade != "observed":
        found.append("its grade is attested; this needs observed (or a waiver)")
    found += _axes(evidence, need) + _age(seen, need, today) + _recorder(seen)
    found += [text for name in need.conditions if (text := EVIDENCE_CONDITIONS[name](evidence, today))]
    return found


def _axes(evidence: Evidence, need: Need) -> list[str]:
    lacking = [f"axis {axis} was not exercised: {why}" for axis, why in evidence.coverage.missing.items()]
    if not need.all_axes:
        return lacking
    covered = {*evidence.coverage.exercised, *evidence.coverage.not_applicable, *evidence.coverage.missing}
    declared = {axis for record in evidence.sides.values() if record.name in need.sides for axis in record.axes}
    return lacking + [f"axis {axis} is declared and was not exercised" for axis in sorted(declared - covered)]


def _age(seen: Seen, need: Need, today: Today) -> list[str]:
    if need.fresh != "age" or not today.now:
        return []
    age, limit = _moment(today.now) - _moment(_made_at(seen)), timedelta(seconds=today.policy.provenance_max_age_s)
    if age < timedelta(minutes=-5):
        return [f"it is dated {seen.at}, which is in the future"]
    return [f"it is older than {_shown(limit)} (policy.provenance_max_age)"] if age > limit else []


def _made_at(seen: Seen) -> str:
    """When it was made: the chain's time, or for imported evidence the time it had where it came from."""
    imported = seen.evidence.request.get("imported")
    claimed = imported.get("finished_at") if isinstance(imported, dict) else None
    return min(seen.at, claimed) if isinstance(claimed, str) else seen.at


def _recorder(seen: Seen) -> list[str]:
    return ["it was recorded by an observer, who may not run tools"] if role_of(seen.actor) == "observer" else []


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _shown(span: timedelta) -> str:
    hours = span.total_seconds() / 3600
    return f"{hours / 24:g} days" if hours > 48 else f"{hours:g} hours"


def _absent(need: Need, today: Today, source: EvidenceSource) -> Match:
    newest = source.newest(need)
    if newest is None:
        return Match(need, why="no evidence")
    changes = tuple(identity_objections(newest.evidence, need, today))
    others = [text for text in objections(newest, need, today) if text not in changes]
    return Match(need, why=f"{newest.evidence.id} does not count: {'; '.join([*changes, *others])}", changes=changes)


def _says(seen: Seen) -> str:
    codes = ", ".join(reason.code for reason in seen.evidence.reasons) or seen.evidence.summary[:120]
    return f"{seen.evidence.id} says {seen.evidence.verdict}: {codes}"
