"""What a gate's evaluation says: its state, what is missing, what changed, who voted."""

from __future__ import annotations

from dataclasses import dataclass

from bitgate.gates.matching import Match
from bitgate.gates.rows import Binding, Choice, Decision, GateRow, State, Subject
from bitgate.gates.spec import Gate


@dataclass(frozen=True)
class Vote:
    """A signed decision of the chain. `problem` is non-empty when its signature or its signer does not hold."""

    seq: int
    at: str
    signer: str
    decision: Decision
    problem: str = ""

    @property
    def choice(self) -> Choice:
        return self.decision.choice

    @property
    def subject(self) -> Subject:
        return self.decision.subject


@dataclass(frozen=True)
class Recorded:
    """A `gate` row of the chain."""

    seq: int
    at: str
    actor: str
    row: GateRow
    hash: str


@dataclass(frozen=True)
class History:
    """What the chain holds of one gate, oldest first."""

    rows: tuple[Recorded, ...] = ()
    votes: tuple[Vote, ...] = ()

    @property
    def passed(self) -> Recorded | None:
        return next((item for item in reversed(self.rows) if item.row.state == "passed"), None)


@dataclass(frozen=True)
class Missing:
    """One thing that keeps a gate from passing, and the call or act that would produce it."""

    key: str
    what: str
    why: str
    call: str
    contradicted: bool = False
    """True when a result says no; False when nothing says yes."""


@dataclass(frozen=True)
class Shown:
    """A vote as a reader sees it: `outdated` says what it was about that is no longer so."""

    vote: Vote
    outdated: str = ""

    @property
    def counts(self) -> bool:
        return not self.outdated and not self.vote.problem


@dataclass(frozen=True)
class GateStatus:
    gate: Gate
    state: State
    subject: Subject
    binding: Binding
    matches: tuple[Match, ...] = ()
    missing: tuple[Missing, ...] = ()
    blocked_by: tuple[str, ...] = ()
    """Prerequisites that are not passed."""
    changes: tuple[str, ...] = ()
    """What changed since the last pass."""
    votes: tuple[Shown, ...] = ()
    waived: tuple[tuple[Missing, Vote], ...] = ()
    passed: Recorded | None = None
    """The last recorded pass, whether or not it still holds."""
    ready: bool = False
    """Everything is there; `submit_gate` would record a pass (or, for a signed gate, a person is next)."""

    @property
    def next(self) -> str:
        """One line: what to do now."""
        if self.state == "passed":
            return "nothing; it holds"
        if self.blocked_by and self.state == "locked":
            return f"pass {', '.join(self.blocked_by)} first"
        if self.missing:
            return self.missing[0].call
        return f'submit_gate(gate="{self.gate.id}")'
