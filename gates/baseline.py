"""The baseline: proposed by its agent, frozen by a person, immutable afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bitgate.gates.conditions import frozen_digests, without_volatile
from bitgate.gates.errors import BaselineRefused
from bitgate.gates.identity import side_changes
from bitgate.gates.ledger import LedgerView
from bitgate.gates.matching import match
from bitgate.gates.roles import Actor, Call, check_call
from bitgate.gates.rows import BaselineRow, Manifest
from bitgate.gates.table import BY_ID
from bitgate.gates.today import Today
from bitgate.store.chain import Entry
from bitgate.store.store import Store


@dataclass(frozen=True)
class Freeze:
    """What a tool must know of the frozen baseline, as values."""

    version: int
    manifest_digest: str
    digests: dict[str, str] = field(default_factory=dict)
    """Side name -> frozen side digest."""


@dataclass(frozen=True)
class Proposed:
    manifest: Manifest
    entry: Entry | None
    """None when this very manifest is the newest proposal already."""
    lacking: tuple[str, ...] = ()
    """What C1 still needs, so that the agent knows before a person is asked."""


def freeze_of(store: Store) -> Freeze | None:
    """The baseline in force; None before a person froze one."""
    manifest = LedgerView(store).frozen
    return Freeze(manifest.version, manifest.digest, frozen_digests(manifest)) if manifest else None


def propose(
    store: Store,
    today: Today,
    actor: Actor,
    *,
    workload: str = "",
    workload_digest: str = "",
    tuning: Sequence[str] = (),
    note: str = "",
) -> Proposed:
    """Proposes today's baseline side as the next version.

    `tuning`: ids of the A/B evidence between candidates; the manifest picks up provenance, noise floor and breakdown
    itself.

    Raises:
        RoleRefused: only role baseline proposes.
        BaselineRefused: the side's identity is not known, or evidence named is not what it should be.
    """
    check_call(actor, Call("propose_baseline"))
    with store.transaction():
        view = LedgerView(store)
        manifest = _manifest(view, today, workload, workload_digest, tuning, note)
        newest = view.proposals[-1].manifest if view.proposals else None
        if newest and newest.digest == manifest.model_copy(update={"version": newest.version}).digest:
            return Proposed(newest, None, _lacking(view, today))
        row = BaselineRow(manifest=manifest, digest=manifest.digest)
        entry = store.append("baseline", f"version {manifest.version}", row.model_dump(mode="json"), actor.text)
    return Proposed(manifest, entry, _lacking(LedgerView(store), today))


def _manifest(
    view: LedgerView, today: Today, workload: str, workload_digest: str, tuning: Sequence[str], note: str
) -> Manifest:
    side = today.sides.get("baseline")
    if side is None or side.record is None:
        why = side.unknown if side and side.unknown else "its identity was not observed"
        raise BaselineRefused(
            f'baseline: {why}; call check_provenance(side="{side.name if side else "baseline"}") first.'
        )
    return Manifest(
        version=max((item.manifest.version for item in view.proposals), default=0) + 1,
        sides={"baseline": without_volatile(side.record)},
        models={role: model.record for role, model in today.models.items() if model.record},
        workload=workload,
        workload_digest=workload_digest,
        tuning=_checked_tuning(view, tuning),
        note=note,
        **_evidence(view, today),
    )


def _evidence(view: LedgerView, today: Today) -> dict[str, tuple[str, ...]]:
    found = {need.key: match(need, today, view.source) for need in BY_ID["C1"].needs}
    keys = {"provenance": "provenance_baseline", "noise_floor": "noise_floor", "breakdown": "breakdown"}
    ids = {name: found[key].seen for name, key in keys.items()}
    return {name: (seen.evidence.id,) if seen else () for name, seen in ids.items()}


def _checked_tuning(view: LedgerView, tuning: Sequence[str]) -> tuple[str, ...]:
    for evidence_id in tuning:
        seen = view.source.by_id(evidence_id)
        if seen is None:
            raise BaselineRefused(f"tuning: no evidence {evidence_id[:60]!r}; allowed: ids of ab_benchmark evidence.")
        if seen.evidence.tool != "ab_benchmark":
            raise BaselineRefused(
                f"tuning: {evidence_id} is of {seen.evidence.tool}; allowed: ids of ab_benchmark evidence."
            )
    return tuple(dict.fromkeys(tuning))


def _lacking(view: LedgerView, today: Today) -> tuple[str, ...]:
    status = view.board(today)["C1"]
    return tuple(f"{item.key}: {item.why}; {item.call}" for item in status.missing if item.key != "signature")


def manifest_changes(before: Manifest | None, after: Manifest) -> list[str]:
    """What a new version changes, for the person who decides about it."""
    if before is None:
        return ["the first version: nothing to compare with"]
    found = [
        text
        for name, record in after.sides.items()
        if name in before.sides
        for text in side_changes(name, before.sides[name], record)
    ]
    if before.workload_digest != after.workload_digest or before.workload != after.workload:
        found.append(f"workload: {before.workload or '(none)'} -> {after.workload or '(none)'}")
    fields = ("provenance", "tuning", "noise_floor", "breakdown")
    found += [f"{name}: other evidence" for name in fields if getattr(before, name) != getattr(after, name)]
    return found or ["nothing that makes its numbers"]
