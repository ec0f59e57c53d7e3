"""Today: the project as configuration and files show it now. Whoever calls the gates passes one as a value."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import JsonValue

from bitgate.gates.spec import ModelRole, SideRole
from bitgate.store.records import ModelRecord, SideRecord


@dataclass(frozen=True)
class SideToday:
    """A configured side. `record` is its configuration today and the stable facts of its last provenance."""

    name: str
    owner: str | None = None
    record: SideRecord | None = None
    """None: unknown, because nothing observed it since it was configured so, or `unknown` says why."""
    unknown: str | None = None
    """Why today's identity is not known: files changed since the provenance, or the provenance is too old."""
    configured: SideRecord | None = None
    """The configured part alone (digest empty), to say what changed when `record` is None."""


@dataclass(frozen=True)
class ModelToday:
    name: str
    record: ModelRecord | None = None
    unknown: str | None = None


@dataclass(frozen=True)
class PolicyToday:
    """What `[policy]` says; None where it is not declared."""

    updates_per_step: int | None = None
    corrections: tuple[str, ...] | None = None
    cross_rank_reduction: str | None = None
    rollout_floor: float = 0.70
    provenance_max_age_s: float = 86_400.0

    def part(self, name: str) -> JsonValue:
        value = getattr(self, name)
        return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True)
class Today:
    sides: dict[SideRole, SideToday] = field(default_factory=dict)
    """The sides that play a role; a role nobody plays is missing."""
    models: dict[ModelRole, ModelToday] = field(default_factory=dict)
    policy: PolicyToday = PolicyToday()
    tools: frozenset[str] = frozenset()
    """Tools that exist in this version. Evidence of any other tool counts for nothing."""
    now: str = ""
    """RFC 3339 UTC; what the age of a provenance is measured against."""

    def names(self) -> dict[str, str]:
        """The words a call is filled in with."""
        names = {role: role for role in ("rollout", "trainer", "baseline", "slice", "full")}
        names.update((role, side.name) for role, side in self.sides.items())
        names.update((role, model.name) for role, model in self.models.items())
        return names
