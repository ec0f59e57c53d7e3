"""The state of gates, as a function of values: evidence, today, the chain's submissions and votes. Touches nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from bitgate.gates.conditions import GATE_CONDITIONS, Facts, Unmet, without_volatile
from bitgate.gates.identity import configured_changes, model_changes, side_changes
from bitgate.gates.matching import EvidenceSource, Match, match
from bitgate.gates.rows import Binding, EvidenceRef, Subject
from bitgate.gates.spec import Gate
from bitgate.gates.status import GateStatus, History, Missing, Shown, Vote
from bitgate.gates.table import GATES
from bitgate.gates.today import Today
from bitgate.store.records import ModelRecord, SideRecord


def evaluate_all(
    today: Today,
    source: EvidenceSource,
    facts: Callable[[Gate], Facts],
    histories: Mapping[str, History],
    gates: Sequence[Gate] = GATES,
) -> dict[str, GateStatus]:
    """Every gate's status, in order; a gate sees its prerequisites' (which come before it in the table)."""
    done: dict[str, GateStatus] = {}
    for gate in gates:
        done[gate.id] = evaluate(gate, today, source, facts(gate), histories.get(gate.id, History()), done)
    return done


def evaluate(
    gate: Gate, today: Today, source: EvidenceSource, facts: Facts, history: History, before: Mapping[str, GateStatus]
) -> GateStatus:
    """One gate's status. `before` holds its prerequisites' statuses."""
    facts = replace(facts, in_force=facts.manifest(gate.id, today))
    matches = tuple(match(need, today, source, _relied_on(history)) for need in gate.needs)
    unmet = [item for name in gate.conditions for item in GATE_CONDITIONS[name](today, facts)]
    binding = _binding(gate, today, facts)
    subject = _subject(binding, gate, matches, before)
    lacking = [*(_lacking(m, today) for m in matches if not m.met), *(_condition(item) for item in unmet)]
    waived = tuple((item, vote) for item in lacking if (vote := _waiver(item, subject, history.votes)))
    waived_keys = {item.key for item, _ in waived}
    missing = tuple(item for item in lacking if item.key not in waived_keys)
    subject = subject.model_copy(
        update={"missing": tuple(sorted({item.key for item in missing})), "waived": tuple(sorted(waived_keys))}
    )
    status = GateStatus(
        gate=gate, state="open", subject=subject, binding=binding, matches=matches, missing=missing, waived=waived,
        blocked_by=tuple(p for p in gate.prerequisites if p not in before or before[p].state != "passed"),
        votes=tuple(_shown(vote, gate, subject, facts) for vote in history.votes), passed=history.passed,
    )  # fmt: skip
    return _decide(status, _changes(status, today, facts, unmet))


def _relied_on(history: History) -> list[str]:
    """Evidence already relied on, newest reliance first: a rerun with the same result does not outdate a vote."""
    subjects = [(vote.seq, vote.subject) for vote in history.votes if not vote.problem]
    subjects += [(item.seq, item.row.subject) for item in history.rows]
    ordered = sorted(subjects, key=lambda item: item[0], reverse=True)
    return list(dict.fromkeys(ref.id for _, subject in ordered for ref in subject.evidence))


# --- what it is about -------------------------------------------------------------------------------------------------


def _binding(gate: Gate, today: Today, facts: Facts) -> Binding:
    sides = {role: today.sides[role].record for role in gate.sides if role in today.sides}
    models = {role: today.models[role].record for role in gate.models if role in today.models}
    return Binding(
        criterion=gate.digest,
        sides={role: without_volatile(record) for role, record in sides.items() if record},
        models={role: record for role, record in models.items() if record},
        policy={name: today.policy.part(name) for name in gate.policy},
        baseline=facts.in_force.digest if gate.binds_baseline and facts.in_force else None,
    )


def _subject(binding: Binding, gate: Gate, matches: Iterable[Match], before: Mapping[str, GateStatus]) -> Subject:
    return Subject(
        gate=gate.id,
        criterion=binding.criterion,
        evidence=tuple(_refs(matches)),
        sides={role: record.digest for role, record in binding.sides.items()},
        models={role: f"{m.architecture_digest}:{m.weights_digest}" for role, m in binding.models.items()},
        policy=binding.policy,
        baseline=binding.baseline,
        prerequisites={p: binding_digest(before[p].subject) for p in gate.prerequisites if p in before},
    )


def _refs(matches: Iterable[Match]) -> Iterable[EvidenceRef]:
    """Provenance is left out: it is renewed daily, and what it found is in the side digests."""
    for found in matches:
        seen = found.counter or found.seen
        if seen and found.need.fresh == "identity":
            evidence = seen.evidence
            yield EvidenceRef(
                need=found.need.key, id=evidence.id, row=seen.row, verdict=evidence.verdict, grade=evidence.grade
            )


def binding_digest(subject: Subject) -> str:
    """What must stay equal for a recorded pass to hold; which run of equal ones showed it does not matter."""
    return subject.model_copy(update={"evidence": (), "missing": (), "waived": (), "prerequisites": {}}).digest


# --- what is missing --------------------------------------------------------------------------------------------------


def _lacking(found: Match, today: Today) -> Missing:
    call = found.need.call.format(**today.names())
    if found.need.tool not in today.tools:
        call = f"none: {found.need.tool} does not exist in this version; a reviewer may waive it with a reason"
    elif absent := [role for role in found.need.sides if role not in today.sides]:
        call = f"a person adds [side.{absent[0]}] to bitgate.toml"
    elif found.counter:
        call = f'get_evidence("{found.counter.evidence.id}"), fix what it names, then {call}'
    return Missing(found.need.key, found.need.what, found.why, call, contradicted=found.counter is not None)


def _condition(item: Unmet) -> Missing:
    return Missing(item.key, item.key.replace("_", " "), item.why, item.call)


def _waiver(item: Missing, subject: Subject, votes: Sequence[Vote]) -> Vote | None:
    """The newest valid waiver of this item: same identities, and for a result that says no, of that very result."""
    for vote in reversed(votes):
        if vote.choice != "waive" or vote.problem or item.key not in vote.subject.missing:
            continue
        if binding_digest(vote.subject) == binding_digest(subject) and _same_counter(item, vote.subject, subject):
            return vote
    return None


def _same_counter(item: Missing, then: Subject, now: Subject) -> bool:
    if not item.contradicted:
        return True
    ids = [{ref.id for ref in subject.evidence if ref.need == item.key} for subject in (then, now)]
    return ids[0] == ids[1] or not ids[1]


# --- state ------------------------------------------------------------------------------------------------------------


def _decide(status: GateStatus, changes: tuple[str, ...]) -> GateStatus:
    gate, missing = status.gate, list(status.missing)
    ready = not missing and not status.blocked_by
    approved, rejected = _standing(status, "approve"), _standing(status, "reject")
    if rejected:
        reject = Missing(
            "rejected",
            "a reviewer's approval",
            f"{rejected.signer} rejected it: {rejected.decision.reason}",
            "answer the reason",
        )
        return replace(status, state="failed", missing=(reject, *missing))
    if any(item.contradicted for item in missing):
        return replace(status, state="failed", changes=changes)
    held = status.passed is not None and binding_digest(status.passed.row.subject) == binding_digest(status.subject)
    if gate.signature == "closes" and ready and approved:
        return replace(status, state="passed", ready=True)
    if gate.signature != "closes" and ready and held and (approved or gate.signature is None):
        return replace(status, state="passed", ready=True)
    if gate.signature == "closes" and ready:
        return replace(status, state="awaiting", ready=True, missing=(_signature(status),), changes=changes)
    if status.passed is not None or _was_approved(status):
        return replace(
            status, state="stale", changes=changes, missing=tuple(missing) or (_resubmit(gate),), ready=ready
        )
    return _unpassed(status, missing, ready, approved)


def _unpassed(status: GateStatus, missing: list[Missing], ready: bool, approved: Vote | None) -> GateStatus:
    gate = status.gate
    if status.blocked_by:
        return replace(status, state="locked")
    if gate.signature == "opens" and not approved:
        return replace(status, state="awaiting", missing=(_signature(status), *missing))
    return replace(status, state="open", ready=ready, missing=tuple(missing) or (_resubmit(gate),))


def _standing(status: GateStatus, choice: str) -> Vote | None:
    """A reviewer's vote that still counts; each reviewer's newest one stands."""
    newest: dict[str, Shown] = {}
    for shown in status.votes:
        if shown.vote.choice in {"approve", "reject"} and shown.counts:
            newest[shown.vote.signer] = shown
    return next((shown.vote for shown in newest.values() if shown.vote.choice == choice), None)


def _was_approved(status: GateStatus) -> bool:
    return status.gate.signature == "closes" and any(
        shown.vote.choice == "approve" and not shown.vote.problem for shown in status.votes
    )


def _signature(status: GateStatus) -> Missing:
    gate = status.gate
    return Missing(
        "signature",
        f"a person signs: {gate.signed_by}",
        "no reviewer signed this yet",
        f"bitgate review, or bitgate decision {gate.id}",
    )


def _resubmit(gate: Gate) -> Missing:
    return Missing(
        "submission", "the evidence is complete", "it is not recorded as a pass", f'submit_gate(gate="{gate.id}")'
    )


def _shown(vote: Vote, gate: Gate, now: Subject, facts: Facts) -> Shown:
    if vote.choice == "waive":
        same = binding_digest(vote.subject) == binding_digest(now)
        return Shown(vote, "" if same else _difference(vote.subject, now, facts))
    then = vote.subject
    if gate.signature == "opens":
        then, now = _opening(then), _opening(now)
    return Shown(vote, "" if then.digest == now.digest else _difference(then, now, facts))


def _opening(subject: Subject) -> Subject:
    """What is signed to open a gate: that its prerequisites passed on what they passed on."""
    return subject.model_copy(update={"evidence": (), "missing": (), "waived": (), "sides": {}, "models": {}})


def _difference(then: Subject, now: Subject, facts: Facts) -> str:
    if then.baseline != now.baseline:
        return f"the baseline is {facts.label(now.baseline)}, the vote was on {facts.label(then.baseline)}"
    fields = ("criterion", "sides", "models", "policy", "evidence", "waived", "prerequisites", "missing")
    changed = [name for name in fields if getattr(then, name) != getattr(now, name)]
    return f"changed since: {', '.join(changed)}" if changed else ""


def _changes(status: GateStatus, today: Today, facts: Facts, unmet: Sequence[Unmet]) -> tuple[str, ...]:
    """What changed since the last recorded pass, in words."""
    if status.passed is None:
        return tuple(dict.fromkeys(item.change for item in unmet if item.change))
    then, now = status.passed.row.binding, status.binding
    found = [f"{p} is no longer passed" for p in status.blocked_by]
    found += [text for role, record in then.sides.items() for text in _side_since(role, record, now, today)]
    found += [text for role, model in then.models.items() for text in _model_since(role, model, now, today)]
    found += [
        f"policy: {name} {then.policy.get(name)} -> {value}"
        for name, value in now.policy.items()
        if then.policy.get(name) != value
    ]
    if then.baseline != now.baseline:
        found.append(f"baseline: {facts.label(then.baseline)} -> {facts.label(now.baseline)}")
    if then.criterion != now.criterion:
        found.append("the gate's criterion is another one in this version of bitgate")
    found += [item.change for item in unmet if item.change]
    found += [item.why for item in status.missing if not found]
    return tuple(dict.fromkeys(found))


def _side_since(role: str, then: SideRecord, now: Binding, today: Today) -> list[str]:
    if role in now.sides:
        return side_changes(role, then, now.sides[role])
    side = next((side for name, side in today.sides.items() if name == role), None)
    if side is None:
        return [f"side {role}: no longer configured"]
    named = configured_changes(role, then, side.configured) if side.configured else []
    return named or [side.unknown or f"side {role}: not observed since it was configured as it is"]


def _model_since(role: str, then: ModelRecord, now: Binding, today: Today) -> list[str]:
    if role in now.models:
        return model_changes(role, then, now.models[role])
    model = next((model for name, model in today.models.items() if name == role), None)
    return [(model and model.unknown) or f"model {role}: its identity is not known any more"]
