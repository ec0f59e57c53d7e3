"""Whether a recorded submission could have been what its row says, given the rows before it."""

from __future__ import annotations

from collections.abc import Iterator

from bitgate.gates.evaluate import binding_digest
from bitgate.gates.replay_index import Index
from bitgate.gates.roles import PERSON, SUBMITS, role_of
from bitgate.gates.rows import EvidenceRef, Subject
from bitgate.gates.spec import Gate
from bitgate.gates.status import Recorded, Vote
from bitgate.gates.table import BY_ID


def submission_lies(index: Index, recorded: Recorded) -> Iterator[str]:
    """Everything that can be held against a `gate` row."""
    row, gate = recorded.row, BY_ID[recorded.row.gate]
    if index.hash_at(row.as_of.seq) != row.as_of.hash or row.as_of.seq >= recorded.seq:
        yield "it was evaluated on a history that is not in this ledger"
    if not _may_submit(index, recorded):
        yield f"{recorded.actor} may not submit {gate.id}"
    if problem := index.subject_problem(row.subject, recorded.seq):
        yield problem
    if row.subject.gate != row.gate or row.subject.criterion != row.binding.criterion:
        yield "its subject is of another gate"
    yield from _binding_lies(recorded)
    if row.state == "passed":
        yield from _pass_lies(index, recorded, gate)


def _may_submit(index: Index, recorded: Recorded) -> bool:
    role = role_of(recorded.actor)
    if role == PERSON:
        return BY_ID[recorded.row.gate].signature == "closes" and recorded.row.state == "passed"
    return any(role == known and recorded.row.gate in gates for known, gates in SUBMITS.items())


def _binding_lies(recorded: Recorded) -> Iterator[str]:
    binding, subject = recorded.row.binding, recorded.row.subject
    sides = {role: record.digest for role, record in binding.sides.items()}
    models = {role: f"{m.architecture_digest}:{m.weights_digest}" for role, m in binding.models.items()}
    if (sides, models, binding.policy, binding.baseline) != (
        subject.sides,
        subject.models,
        subject.policy,
        subject.baseline,
    ):
        yield "what it binds is not what it is about"


def _pass_lies(index: Index, recorded: Recorded, gate: Gate) -> Iterator[str]:
    subject = recorded.row.subject
    if subject.missing:
        yield f"it passed with {', '.join(subject.missing)} missing"
    for prerequisite in gate.prerequisites:
        if not any(item.row.gate == prerequisite and item.row.state == "passed" for item in index.submissions):
            yield f"{prerequisite} had not passed"
    if gate.signature and not _approved(index, recorded, gate):
        yield "no reviewer had approved it"
    yield from _waiver_lies(index, recorded)
    if subject.criterion == gate.digest:
        yield from _need_lies(index, subject, gate)


def _approved(index: Index, recorded: Recorded, gate: Gate) -> bool:
    def about_it(vote: Vote) -> bool:
        return gate.signature == "opens" or vote.subject.digest == recorded.row.subject.digest

    votes = [v for v in index.votes if v.seq < recorded.seq and v.decision.gate == gate.id and not v.problem]
    return any(vote.choice == "approve" and about_it(vote) for vote in votes)


def _waiver_lies(index: Index, recorded: Recorded) -> Iterator[str]:
    subject = recorded.row.subject
    granted = {
        key
        for vote in index.votes
        if vote.choice == "waive"
        and not vote.problem
        and vote.seq < recorded.seq
        and vote.decision.gate == subject.gate
        and binding_digest(vote.subject) == binding_digest(subject)
        for key in vote.subject.missing
    }
    if lacking := sorted(set(subject.waived) - granted):
        yield f"nobody waived {', '.join(lacking)}"


def _need_lies(index: Index, subject: Subject, gate: Gate) -> Iterator[str]:
    refs = {ref.need: ref for ref in subject.evidence}
    for need in gate.needs:
        if need.fresh == "age" or need.key in subject.waived:
            continue
        ref = refs.get(need.key)
        if ref is None:
            yield f"it passed without evidence for {need.key}"
        elif problem := _ref_problem(index, ref, subject, gate):
            yield problem


def _ref_problem(index: Index, ref: EvidenceRef, subject: Subject, gate: Gate) -> str:
    found, need = index.evidence(ref.id), next(need for need in gate.needs if need.key == ref.need)
    if found is None:
        return ""  # subject_problem has said so
    evidence = found[3]
    if evidence.tool != need.tool or (need.check is not None and evidence.check != need.check):
        return f"evidence {ref.id} is of {evidence.tool} {evidence.check or ''}, which is not {need.key}"
    if evidence.verdict not in need.accepts:
        return f"evidence {ref.id} for {need.key} says {evidence.verdict}"
    if need.grade == "observed" and evidence.grade != "observed":
        return f"evidence {ref.id} for {need.key} is attested, and nobody waived that"
    digests = {record.name: record.digest for record in evidence.sides.values()}
    if any(subject.sides.get(role) not in digests.values() for role in need.sides):
        return f"evidence {ref.id} for {need.key} is of other sides than it says"
    return ""
