"""`submit_gate`: evaluates a gate and records the outcome with the evidence it used, in one transaction."""

from __future__ import annotations

from dataclasses import dataclass

from bitgate.gates.errors import GateError
from bitgate.gates.evaluate import binding_digest
from bitgate.gates.ledger import LedgerView
from bitgate.gates.roles import Actor, Call, check_call
from bitgate.gates.rows import GateRow, HeadRef, State
from bitgate.gates.status import GateStatus
from bitgate.gates.table import BY_ID, GATE_IDS
from bitgate.gates.today import Today
from bitgate.store.chain import Entry
from bitgate.store.store import Store


@dataclass(frozen=True)
class Submission:
    """What a submission did. `entry` is None when the same outcome was on record already."""

    status: GateStatus
    entry: Entry | None

    @property
    def passed(self) -> bool:
        return self.status.state == "passed"


def submit(store: Store, gate_id: str, today: Today, actor: Actor) -> Submission:
    """Evaluates and records.

    Raises:
        RoleRefused: the role may not submit this gate.
        GateError: there is no such gate.
    """
    require_gate(gate_id)
    check_call(actor, Call("submit_gate", gate=gate_id))
    with store.transaction():
        view = LedgerView(store)
        status = view.board(today)[gate_id]
        outcome = _outcome(status)
        entry = _record(store, view, status, outcome, actor.text)
    settled = LedgerView(store).board(today)[gate_id] if outcome == "passed" else status
    return Submission(settled, entry)


def require_gate(gate_id: str) -> None:
    if gate_id not in BY_ID:
        raise GateError(f"gate: got {gate_id[:40]!r}; allowed: {', '.join(GATE_IDS)}.")


def _outcome(status: GateStatus) -> State:
    """A gate whose evidence is complete passes by being recorded, unless a person must sign what is shown."""
    if status.gate.signature == "closes" or not status.ready or status.state in {"failed", "locked", "awaiting"}:
        return status.state
    return "passed"


def _record(store: Store, view: LedgerView, status: GateStatus, outcome: State, actor: str) -> Entry | None:
    rows = view.histories[status.gate.id].rows
    if rows and rows[-1].row.state == outcome and _same(rows[-1].row, status):
        return None
    head = view.head
    row = GateRow(
        gate=status.gate.id,
        state=outcome,
        subject=status.subject,
        binding=status.binding,
        missing=() if outcome == "passed" else tuple(f"{item.key}: {item.why}"[:500] for item in status.missing),
        as_of=HeadRef(seq=head.seq, hash=head.hash),
    )
    return store.append("gate", status.gate.id, row.model_dump(mode="json"), actor)


def _same(row: GateRow, status: GateStatus) -> bool:
    then, now = row.subject, status.subject
    return binding_digest(then) == binding_digest(now) and then.missing == now.missing and then.waived == now.waived


def record_signed_pass(store: Store, gate_id: str, today: Today, actor: str) -> Entry | None:
    """After a vote: the pass of a gate that a signature closes goes on record with what it was based on."""
    view = LedgerView(store)
    status = view.board(today)[gate_id]
    signed = status.gate.signature == "closes" and status.state == "passed"
    return _record(store, view, status, "passed", actor) if signed else None
