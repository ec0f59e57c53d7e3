"""What the gate tools answer: the board in short, one gate whole, a submission, a proposal."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, Field

from bitgate.gates.baseline import Freeze, Proposed
from bitgate.gates.rows import Choice, State
from bitgate.gates.status import GateStatus, Missing, Shown
from bitgate.gates.table import GATE_IDS
from bitgate.server.answers import Answer


class MissingItem(BaseModel):
    key: str
    why: str
    call: str = Field(description="What would produce it")
    contradicted: bool = Field(default=False, description="A result says no; otherwise nothing says yes")


class GateItem(BaseModel):
    gate: str
    title: str
    state: State
    next: str
    blocked_by: list[str] = []
    changed: list[str] = Field(default=[], description="What changed since it passed")
    waived: list[str] = []
    passed_at: str | None = None
    passed_by: str | None = None


class VoteItem(BaseModel):
    choice: Choice
    by: str
    at: str
    reason: str = ""
    outdated: str = Field(default="", description="Non-empty when it no longer counts, and why")


class BoardAnswer(Answer):
    """All gates in order, or one of them whole."""

    kind: Literal["board", "gate", "submission"]
    gates: list[GateItem] = []
    gate: GateItem | None = None
    criterion: str | None = None
    missing: list[MissingItem] = []
    evidence: dict[str, str] = Field(default={}, description="Need -> id of the evidence that meets it")
    votes: list[VoteItem] = []
    baseline: str | None = None
    recorded: bool | None = Field(default=None, description="False when the same outcome was on record already")
    sign: str | None = Field(default=None, description="Where a person signs; nothing here can")
    asked: str | None = Field(default=None, description="That the client's user was offered the review page")


class BaselineAnswer(Answer):
    version: int
    digest: str
    recorded: bool
    sides: dict[str, str]
    lacking: list[str] = []


def gate_item(status: GateStatus) -> GateItem:
    return GateItem(
        gate=status.gate.id,
        title=status.gate.title,
        state=status.state,
        next=status.next,
        blocked_by=list(status.blocked_by),
        changed=list(status.changes)[:5],
        waived=[item.key for item, _ in status.waived],
        passed_at=status.passed.at if status.passed else None,
        passed_by=status.passed.actor if status.passed else None,
    )


def board_answer(board: dict[str, GateStatus], freeze: Freeze | None) -> BoardAnswer:
    items = [gate_item(board[gate]) for gate in GATE_IDS]
    first = next((item for item in items if item.state != "passed"), None)
    return BoardAnswer(
        kind="board",
        summary=board_summary(items),
        next=f"{first.gate}: {first.next}" if first else "every gate is passed",
        gates=items,
        baseline=f"version {freeze.version}, frozen" if freeze else "not frozen",
    )


def board_summary(items: Iterable[GateItem]) -> str:
    states: dict[str, list[str]] = {}
    for item in items:
        states.setdefault(item.state, []).append(item.gate)
    return "; ".join(f"{state}: {', '.join(gates)}" for state, gates in states.items())


ADDRESS: Final = "review.url"
"""File in `.bitgate` that holds the address of a review page that is running."""


def review_address(state: Path) -> str:
    """Where a review page of this project is running now; empty when none is. It has no token: that is the person's."""
    try:
        address = (state / ADDRESS).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
    return address if re.fullmatch(r"http://127\.0\.0\.1:\d{1,5}", address) else ""


def where_to_sign(gate: str, state: Path | None) -> str:
    """For a person: the running page, or the commands. No answer through the agent's client is ever a signature."""
    commands = f"bitgate review, or bitgate decision {gate}"
    address = review_address(state) if state else ""
    return f"a person opens {address}/gates/{gate} (or runs {commands})" if address else f"a person runs {commands}"


def gate_answer(
    status: GateStatus, kind: Literal["gate", "submission"] = "gate", state: Path | None = None
) -> BoardAnswer:
    item = gate_item(status)
    return BoardAnswer(
        kind=kind,
        summary=f"{item.gate} {item.title} is {item.state}" + (f": {_why(status)}" if _why(status) else "."),
        next=item.next,
        gate=item,
        criterion=status.gate.criterion,
        missing=[missing_item(entry) for entry in status.missing],
        evidence={m.need.key: m.seen.evidence.id for m in status.matches if m.seen},
        votes=[vote_item(shown) for shown in status.votes[-8:]],
        sign=where_to_sign(item.gate, state) if status.state == "awaiting" else None,
    )


def _why(status: GateStatus) -> str:
    if status.changes:
        return status.changes[0]
    return f"{status.missing[0].key}: {status.missing[0].why}" if status.missing else ""


def missing_item(item: Missing) -> MissingItem:
    return MissingItem(key=item.key, why=item.why, call=item.call, contradicted=item.contradicted)


def vote_item(shown: Shown) -> VoteItem:
    vote = shown.vote
    problem = shown.outdated or vote.problem
    return VoteItem(choice=vote.choice, by=vote.signer, at=vote.at, reason=vote.decision.reason, outdated=problem)


def baseline_answer(proposed: Proposed) -> BaselineAnswer:
    manifest = proposed.manifest
    todo = (
        f"C1 still needs {proposed.lacking[0]}" if proposed.lacking else 'submit_gate(gate="C1"), then a person signs'
    )
    return BaselineAnswer(
        summary=f"Baseline version {manifest.version} is proposed; a person freezes it by signing C1.",
        next=todo,
        version=manifest.version,
        digest=manifest.digest,
        recorded=proposed.entry is not None,
        sides={name: record.digest for name, record in manifest.sides.items()},
        lacking=list(proposed.lacking),
    )
