"""The types a gate is written in: what evidence it needs, of whom, how fresh, and whether a person must sign."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Literal

from bitgate.store.records import Grade, Verdict

SideRole = Literal["rollout", "trainer", "baseline"]
ModelRole = Literal["slice", "full"]
Signature = Literal["opens", "closes"]
"""`opens`: a person must sign before the gate's evidence counts. `closes`: a person must sign the evidence."""
OnFail = Literal["blocks", "newest"]
"""`blocks`: a fail under today's digests stands until what it saw changes: a later pass with the same digests does not
explain it. `newest`: the newest result decides (for speed and provenance the surroundings are part of it)."""
PolicyField = Literal["updates_per_step", "corrections", "cross_rank_reduction", "rollout_floor"]


@dataclass(frozen=True)
class Need:
    """One piece of evidence that a gate asks for."""

    key: str
    what: str
    tool: str
    call: str
    """How to produce it; `{rollout}`, `{trainer}`, `{baseline}`, `{slice}`, `{full}` become today's names."""
    check: str | None = None
    sides: tuple[SideRole, ...] = ()
    model: ModelRole | None = None
    grade: Grade = "attested"
    accepts: tuple[Verdict, ...] = ("pass",)
    on_fail: OnFail = "blocks"
    all_axes: bool = False
    """Every axis the sides declare must have been exercised or be not applicable."""
    fresh: Literal["identity", "age"] = "identity"
    conditions: tuple[str, ...] = ()
    """Names of `conditions.EVIDENCE_CONDITIONS` that the evidence's figures must meet."""


@dataclass(frozen=True)
class Gate:
    id: str
    title: str
    criterion: str
    needs: tuple[Need, ...]
    prerequisites: tuple[str, ...] = ()
    signature: Signature | None = None
    signed_by: str = ""
    """What the person's signature says, in words."""
    policy: tuple[PolicyField, ...] = ()
    """Policy that the gate binds: a change makes it stale."""
    conditions: tuple[str, ...] = ()
    """Names of `conditions.GATE_CONDITIONS`."""
    binds_baseline: bool = False

    @property
    def sides(self) -> tuple[SideRole, ...]:
        return tuple(dict.fromkeys(side for need in self.needs for side in need.sides))

    @property
    def models(self) -> tuple[ModelRole, ...]:
        return tuple(dict.fromkeys(need.model for need in self.needs if need.model))

    @cached_property
    def digest(self) -> str:
        """Digest of the criterion as data: a pass names the rules it was held to."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode("utf-8")).hexdigest()
