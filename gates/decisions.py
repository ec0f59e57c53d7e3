"""What a person decides about a gate: the text they sign, and the row that keeps it with its signature."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bitgate.gates import sshsig
from bitgate.gates.errors import SignatureRefused
from bitgate.gates.ledger import LedgerView, vote_problem
from bitgate.gates.reviewers import RUNNER, set_digest
from bitgate.gates.roles import PERSON
from bitgate.gates.rows import Choice, Decision, HeadRef, Signed, Subject, pretty
from bitgate.gates.status import GateStatus
from bitgate.gates.submit import record_signed_pass, require_gate
from bitgate.gates.today import Today
from bitgate.store.chain import Entry
from bitgate.store.store import Store


@dataclass(frozen=True)
class Signature:
    """A decision that was recorded."""

    entry: Entry
    decision: Decision
    signer: str


def decision_for(
    store: Store, gate_id: str, today: Today, choice: Choice, reason: str = "", needs: tuple[str, ...] = ()
) -> Decision:
    """What a reviewer would sign now: exactly what the board shows. `needs`: what a waiver waives (all missing).

    Raises:
        SignatureRefused: nobody may sign in this ledger, a waiver or rejection without a reason, nothing to decide.
    """
    require_gate(gate_id)
    view = LedgerView(store)
    if not view.reviewers.current:
        raise SignatureRefused(
            "reviewers: this ledger has none; they are the chain's first row (`bitgate reviewers FILE`)."
        )
    if choice in {"reject", "waive"} and not reason.strip():
        raise SignatureRefused(
            f"reason: a {'waiver' if choice == 'waive' else 'rejection'} needs one, for those who read it later."
        )
    status = view.board(today)[gate_id]
    subject = _subject(status, choice, needs)
    head = view.head
    return Decision(
        choice=choice,
        reason=reason.strip(),
        gate=gate_id,
        says=status.gate.criterion,
        subject=subject,
        subject_digest=subject.digest,
        head=HeadRef(seq=head.seq, hash=head.hash),
        reviewers=set_digest(view.reviewers.current),
    )


def _subject(status: GateStatus, choice: Choice, needs: tuple[str, ...]) -> Subject:
    lacking = sorted(item.key for item in status.missing if item.key not in {"signature", "submission", "rejected"})
    if choice == "approve":
        return _approvable(status, lacking)
    if choice == "reject":
        return status.subject
    unknown = sorted(set(needs) - set(lacking))
    if unknown or not lacking:
        raise SignatureRefused(
            f"needs: got {', '.join(unknown) or 'none'}; {status.gate.id} lacks "
            f"{', '.join(lacking) or 'nothing, so nothing can be waived'}."
        )
    return status.subject.model_copy(update={"missing": tuple(sorted(needs) or lacking)})


def _approvable(status: GateStatus, lacking: list[str]) -> Subject:
    """Approval of what is there. Missing evidence is not approved away: a waiver, with its reason, is for that."""
    gate = status.gate
    if gate.signature == "opens":
        if status.blocked_by:
            raise SignatureRefused(f"gate: {gate.id} is locked; {', '.join(status.blocked_by)} must pass first.")
        return status.subject
    if lacking or status.blocked_by:
        what = ", ".join([*lacking, *(f"{p} passed" for p in status.blocked_by)])
        raise SignatureRefused(f"gate: {gate.id} lacks {what}; produce it, or waive it with a reason.")
    return status.subject


def record(store: Store, message: str, signature: str, today: Today, via: str = PERSON) -> Signature:
    """Takes a signed decision into the chain, if it is about what is there now.

    Raises:
        SignatureRefused: the signature does not hold, its signer is no reviewer, or what was signed is not today's.
    """
    decision = parse(message)
    with store.transaction():
        view = LedgerView(store)
        signer = sshsig.find_signer(signature, view.reviewers.current)
        signed = Signed(message=message, signature=signature, signer=signer)
        _check(view, decision, signed, today)
        entry = store.append("signature", decision.gate, signed.model_dump(mode="json"), f"{via}:{signer}")
        record_signed_pass(store, decision.gate, today, f"{via}:{signer}")
    return Signature(entry, decision, signer)


def parse(message: str) -> Decision:
    """The decision in a signed text.

    Raises:
        SignatureRefused: it is no decision, or not byte for byte as `bitgate decision` writes it.
    """
    try:
        decision = Decision.model_validate_json(message)
    except ValueError as error:
        raise SignatureRefused("decision: this text is no decision; make it with `bitgate decision GATE`.") from error
    if pretty(decision) != message:
        raise SignatureRefused("decision: the text is not as `bitgate decision` writes it; sign its output unchanged.")
    return decision


def _check(view: LedgerView, decision: Decision, signed: Signed, today: Today) -> None:
    head = view.head
    entry = Entry(head.seq + 1, "", "signature", decision.gate, "", {}, head.hash, "")
    problem = vote_problem(entry, signed, decision, view.reviewers) or _history_problem(view, decision)
    if problem:
        raise SignatureRefused(f"decision: {problem}.")
    if signed.signer.startswith(RUNNER):
        raise SignatureRefused(f"decision: {signed.signer} is a machine and may not vote.")
    _check_order(view, decision, signed.signer)
    current = decision_for(view.store, decision.gate, today, decision.choice, decision.reason, _waived(decision))
    if current.subject_digest != decision.subject_digest or current.says != decision.says:
        raise SignatureRefused(
            "decision: outdated: what was signed is not what is there now. Make a new decision and look again."
        )


def _check_order(view: LedgerView, decision: Decision, signer: str) -> None:
    """A vote kept back must not undo a later one of the same person."""
    later = [
        v.seq
        for v in view.votes
        if v.signer == signer and v.decision.gate == decision.gate and v.seq > decision.head.seq
    ]
    if later:
        raise SignatureRefused(
            f"decision: {signer} voted on {decision.gate} after this was made (row {later[-1]}); make a new decision."
        )


def _waived(decision: Decision) -> tuple[str, ...]:
    return decision.subject.missing if decision.choice == "waive" else ()


def _history_problem(view: LedgerView, decision: Decision) -> str:
    rows = view.store.ledger.rows("SELECT hash FROM entries WHERE seq = :seq", {"seq": decision.head.seq})
    return "" if rows and rows[0][0] == decision.head.hash else "it covers a chain head that is not in this ledger"


def sign_with(decision: Decision, key: Path) -> str:
    """The signature made with a private key on this machine (or in an agent, or on a hardware key)."""
    return sshsig.sign(pretty(decision), key)
