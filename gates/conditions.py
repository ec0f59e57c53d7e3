"""Conditions beyond a verdict, by name: on one piece of evidence, and on a gate as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic import JsonValue

from bitgate.gates.identity import configured_changes, side_changes
from bitgate.gates.rows import Manifest
from bitgate.gates.today import Today
from bitgate.store.records import Evidence, SideRecord

LEGS: Final = frozenset({"rollout", "recompute", "first_train_forward"})


@dataclass(frozen=True)
class Unmet:
    """A condition that does not hold: why, and the call or edit that would make it hold."""

    key: str
    why: str
    call: str = ""
    change: str = ""
    """Non-empty when it held before and names what changed since."""


@dataclass(frozen=True)
class Divergence:
    """A failed comparison, and the call that would localise it."""

    evidence_id: str
    call: str


@dataclass(frozen=True)
class Facts:
    """What gate-wide conditions read, gathered from the ledger by the caller."""

    proposal: Manifest | None = None
    """The newest proposal."""
    versions: Mapping[str, int] = field(default_factory=dict)
    """Manifest digest -> version, of every proposal."""
    in_force: Manifest | None = None
    """The one that the gate at hand is about; set by `evaluate` with `manifest`."""
    frozen: Manifest | None = None
    """The proposal that a reviewer froze; None when nobody did."""
    tuning: Sequence[Evidence] = ()
    """A/B evidence between candidates of the baseline that the proposal names and the ledger holds."""
    unexplained: Sequence[Divergence] = ()
    """Failed comparisons for which no bisect_layer evidence holds a repro."""

    def manifest(self, gate: str, today: Today) -> Manifest | None:
        """The frozen baseline; for C1 also a proposal that the configuration has moved on to."""
        if gate != "C1" or (self.frozen is not None and not drift(self.frozen, today)):
            return self.frozen
        return self.proposal or self.frozen

    def label(self, digest: str | None) -> str:
        known = self.versions.get(digest or "")
        return f"version {known}" if known else (digest or "none")[:12]


# --- one piece of evidence --------------------------------------------------------------------------------------------


def three_legs(evidence: Evidence, today: Today) -> str:
    """run_compare names each comparison by its two legs, such as `rollout/recompute`."""
    compared = evidence.figures.get("comparisons")
    named = compared if isinstance(compared, dict) else {}
    seen = {leg for label, figures in named.items() if _rows(figures) for leg in label.split("/")}
    lacking = sorted(LEGS - seen)
    return f"legs compared: {', '.join(sorted(seen)) or 'none'}; lacking {', '.join(lacking)}" if lacking else ""


def _rows(figures: JsonValue) -> bool:
    compared = figures.get("compared") if isinstance(figures, dict) else None
    return isinstance(compared, int) and compared > 0


def floor(evidence: Evidence, today: Today) -> str:
    lower = _number(evidence.figures, "ratio_low", "lower", "ci_low")
    if lower is None:
        return "it names no lower end of the interval"
    wanted = today.policy.rollout_floor
    return "" if lower >= wanted else f"the lower end is {lower:.4f}, the floor is {wanted:.4f}"


def _number(figures: dict[str, JsonValue], *names: str) -> float | None:
    values = (figures.get(name) for name in names)
    return next((float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)), None)


EVIDENCE_CONDITIONS: Final[dict[str, Callable[[Evidence, Today], str]]] = {"three_legs": three_legs, "floor": floor}
"""Name -> function that returns why the evidence does not meet it, or an empty string."""


# --- the gate as a whole ----------------------------------------------------------------------------------------------


def policy_declared(today: Today, facts: Facts) -> list[Unmet]:
    policy = today.policy
    declared = {
        "updates_per_step": policy.updates_per_step is not None,
        "corrections": policy.corrections is not None,
        "cross_rank_reduction": policy.cross_rank_reduction is not None,
    }
    lacking = [name for name, given in declared.items() if not given]
    if not lacking:
        return []
    return [
        Unmet(
            "policy_declared",
            f"[policy] does not say {', '.join(lacking)}",
            f"a person declares {', '.join(lacking)} in bitgate.toml",
        )
    ]


def one_update_a_step(today: Today, facts: Facts) -> list[Unmet]:
    updates = today.policy.updates_per_step
    if updates in {None, 1}:
        return []
    return [
        Unmet(
            "one_update_a_step",
            f"{updates} updates a step: the later ones use other weights than the rollout",
            'bitgate waive C0 --reason "…"',
        )
    ]


def routes(today: Today, facts: Facts) -> list[Unmet]:
    lacking = [role for role in ("rollout", "trainer") if role not in today.sides]
    return [
        Unmet("routes", f"no side plays {role}", f"a person adds [side.{role}] to bitgate.toml") for role in lacking
    ]


def baseline_proposed(today: Today, facts: Facts) -> list[Unmet]:
    if facts.proposal is not None:
        return []
    return [Unmet("baseline_proposed", "no baseline is proposed", "propose_baseline() by role baseline")]


def tuning_record(today: Today, facts: Facts) -> list[Unmet]:
    if facts.proposal is None or facts.tuning:
        return []
    call = 'ab_benchmark(side="{baseline}", other="<another candidate>"), then propose_baseline()'.format(
        **today.names()
    )
    return [
        Unmet(
            "tuning_record", "the proposal names no A/B result between candidates: nothing shows that it is tuned", call
        )
    ]


def baseline_frozen(today: Today, facts: Facts) -> list[Unmet]:
    if facts.frozen is not None:
        return []
    return [Unmet("baseline_frozen", "no person froze a baseline", "bitgate decision C1, then bitgate sign")]


def baseline_undrifted(today: Today, facts: Facts) -> list[Unmet]:
    manifest = facts.in_force
    if manifest is None:
        return []
    return [
        Unmet("baseline_drift", f"the baseline is not what was {_stage(facts)}: {text}", DRIFT_CALL, text)
        for text in drift(manifest, today)
    ]


def _stage(facts: Facts) -> str:
    return "frozen" if facts.in_force == facts.frozen else "proposed"


DRIFT_CALL: Final = "put the configuration back, or propose a new version: propose_baseline()"


def drift(manifest: Manifest, today: Today) -> list[str]:
    """How today's baseline sides differ from the manifest's, in words; empty when they do not."""
    found: list[str] = []
    for role, frozen in manifest.sides.items():
        side = next((side for side in today.sides.values() if side.name == frozen.name), None)
        if side is None:
            found.append(f"side {frozen.name}: no longer configured")
        elif side.record is not None:
            found += side_changes(role, frozen, side.record)
        elif side.configured is not None:
            found += configured_changes(role, frozen, side.configured)
    return found


def frozen_digests(manifest: Manifest | None) -> dict[str, str]:
    """Side name -> frozen digest."""
    return {record.name: record.digest for record in manifest.sides.values()} if manifest else {}


def divergences_have_repros(today: Today, facts: Facts) -> list[Unmet]:
    if not facts.unexplained:
        return []
    named = ", ".join(item.evidence_id for item in facts.unexplained[:3])
    more = f" and {len(facts.unexplained) - 3} more" if len(facts.unexplained) > 3 else ""
    return [Unmet("divergences_have_repros", f"no repro on record for {named}{more}", facts.unexplained[0].call)]


GATE_CONDITIONS: Final[dict[str, Callable[[Today, Facts], list[Unmet]]]] = {
    "policy_declared": policy_declared,
    "one_update_a_step": one_update_a_step,
    "routes": routes,
    "baseline_proposed": baseline_proposed,
    "tuning_record": tuning_record,
    "baseline_frozen": baseline_frozen,
    "baseline_undrifted": baseline_undrifted,
    "divergences_have_repros": divergences_have_repros,
}


def without_volatile(record: SideRecord) -> SideRecord:
    return record.model_copy(update={"volatile": {}})
