"""Who may run, change or propose what (DESIGN section 10), as a function of values; the same for every way in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, get_args

from bitgate.gates.errors import RoleRefused
from bitgate.gates.rows import Role

ROLES: Final[tuple[Role, ...]] = get_args(Role)
PERSON: Final = "person"
"""What a row's actor begins with when a person at the command line or the review page wrote it."""

READING: Final = frozenset({"get_gates", "get_evidence", "get_run"})
OF_FROZEN: Final = frozenset({"ab_benchmark", "check_provenance"})
"""The tools that may touch the frozen baseline, whoever calls."""
SUBMITS: Final[dict[Role, frozenset[str]]] = {
    "baseline": frozenset({"C0", "C1"}),
    "consistency": frozenset({"C0", "C2", "C3", "C4", "C5", "C6", "C7", "C8", "C9", "C10"}),
    "observer": frozenset(),
}


@dataclass(frozen=True)
class Actor:
    """Who acts: a role, and the name of the token or user behind it."""

    role: Role
    name: str = "local"

    @property
    def text(self) -> str:
        """As rows record it."""
        return f"{self.role}:{self.name}"


@dataclass(frozen=True)
class SideInCall:
    """A side as a call would run it."""

    name: str
    owner: str | None = None
    digest: str | None = None
    """Today's digest; None when unknown."""
    configured: bool = True
    """False when the call tries other options."""


@dataclass(frozen=True)
class Call:
    tool: str
    sides: tuple[SideInCall, ...] = ()
    gate: str | None = None
    started_by: str | None = None
    """Of cancel_run: the actor that started the run."""
    frozen: Mapping[str, str] = field(default_factory=dict)
    """Side name -> frozen baseline digest; empty before a freeze."""


def role_of(actor: str) -> str:
    """The role in a row's actor text; a text without one is read as the whole."""
    return actor.partition(":")[0]


def owner_of(side: SideInCall) -> str:
    """A side's owner. Left out, side `baseline` is the baseline agent's and every other the consistency agent's."""
    return side.owner or ("baseline" if side.name == "baseline" else "consistency")


def check_call(actor: Actor, call: Call) -> None:
    """Nothing, when the role may do this.

    Raises:
        RoleRefused: says which role, which rule, and who may.
    """
    refusal = _refusal(actor, call)
    if refusal:
        raise RoleRefused(refusal)


def _refusal(actor: Actor, call: Call) -> str:
    if call.tool in READING:
        return ""
    if actor.role not in ROLES:
        return f"role: got {actor.role!r}; allowed: {', '.join(ROLES)}."
    if actor.role == "observer":
        return (
            f"role observer may read; it may not call {call.tool}. Use a connection with role baseline or consistency."
        )
    return _special(actor, call) or next(filter(None, (_side_refusal(actor, call, side) for side in call.sides)), "")


def _special(actor: Actor, call: Call) -> str:
    if call.tool == "propose_baseline" and actor.role != "baseline":
        return "only role baseline proposes a baseline, and only a person freezes one."
    if call.tool == "submit_gate" and call.gate not in SUBMITS[actor.role]:
        return (
            f"role {actor.role} may not submit {call.gate}; it may submit {', '.join(_in_order(SUBMITS[actor.role]))}."
        )
    if call.tool == "cancel_run" and call.started_by and role_of(call.started_by) not in {actor.role, PERSON}:
        return f"the run was started by {call.started_by}; role {actor.role} may cancel its own runs."
    return ""


def _side_refusal(actor: Actor, call: Call, side: SideInCall) -> str:
    if side.name in call.frozen or side.digest in call.frozen.values():
        return _frozen_refusal(actor, call, side)
    owner = owner_of(side)
    if actor.role == "baseline":
        return (
            ""
            if owner == "baseline"
            else f"side {side.name} is owned by {owner}; role baseline runs the sides it owns."
        )
    if owner != "baseline":
        return ""
    return (
        f"side {side.name} is owned by baseline and not frozen; role consistency may only run the frozen baseline. "
        "Wait for a person to freeze C1."
    )


def _frozen_refusal(actor: Actor, call: Call, side: SideInCall) -> str:
    """Both roles may run the frozen digest, for speed and provenance; nobody may run anything else of it."""
    wanted = call.frozen.get(side.name, side.digest)
    if not side.configured:
        return f"side {side.name} is frozen; a call may not try other options on it."
    if call.tool not in OF_FROZEN:
        allowed = " and ".join(sorted(OF_FROZEN))
        return f"side {side.name} is the frozen baseline; only {allowed} may run it, not {call.tool}."
    if side.digest is not None and side.digest != wanted and not _may_look_at_drift(actor, call):
        drift = f"side {side.name} is {side.digest[:12]}, frozen is {wanted and wanted[:12]}"
        return f"invalid: baseline_drift: {drift}. Put its configuration back."
    return ""


def _may_look_at_drift(actor: Actor, call: Call) -> bool:
    """Provenance says what drifted; and the baseline agent measures the next version against its own sides only."""
    own = actor.role == "baseline" and all(owner_of(side) == "baseline" for side in call.sides)
    return call.tool == "check_provenance" or own


def _in_order(gates: frozenset[str]) -> list[str]:
    return sorted(gates, key=lambda gate: int(gate[1:]))
