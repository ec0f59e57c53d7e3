"""Reads what gates need off a store: submissions, votes with their signatures checked, the baseline, today's board."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from pydantic import ValidationError

from bitgate.gates import sshsig
from bitgate.gates.conditions import Facts
from bitgate.gates.evaluate import evaluate_all
from bitgate.gates.reviewers import RUNNER, Timeline, names, set_digest, timeline
from bitgate.gates.rows import BaselineRow, Decision, GateRow, Manifest, Signed, pretty
from bitgate.gates.source import StoreSource, unexplained_failures
from bitgate.gates.spec import Gate
from bitgate.gates.status import GateStatus, History, Recorded, Vote
from bitgate.gates.table import BY_ID
from bitgate.gates.today import Today
from bitgate.store.chain import Entry, Head
from bitgate.store.records import Evidence
from bitgate.store.store import Store


@dataclass(frozen=True)
class Proposal:
    """A `baseline` row whose digest is its manifest's."""

    seq: int
    at: str
    actor: str
    manifest: Manifest


@dataclass
class LedgerView:
    """One look at a store. Everything is read once, when first asked for."""

    store: Store
    source: StoreSource = field(init=False)

    def __post_init__(self) -> None:
        self.source = StoreSource(self.store)

    @cached_property
    def head(self) -> Head:
        return self.store.head()

    @cached_property
    def reviewers(self) -> Timeline:
        return timeline(self.store.entries(kind="reviewers"))

    @cached_property
    def votes(self) -> tuple[Vote, ...]:
        votes = (vote_of(entry, self.reviewers) for entry in self.store.entries(kind="signature"))
        return tuple(vote for vote in votes if vote)

    @cached_property
    def proposals(self) -> tuple[Proposal, ...]:
        return tuple(found for entry in self.store.entries(kind="baseline") if (found := proposal_of(entry)))

    @cached_property
    def frozen(self) -> Manifest | None:
        """The proposal in force: approved on C1 by a reviewer after it was proposed, and not rejected since."""
        return frozen_of(self.proposals, self.votes)

    @cached_property
    def histories(self) -> Mapping[str, History]:
        votes: dict[str, list[Vote]] = defaultdict(list)
        for vote in self.votes:
            votes[vote.decision.gate].append(vote)
        return {gate: History(self._submissions(gate), tuple(votes[gate])) for gate in BY_ID}

    def _submissions(self, gate: str) -> tuple[Recorded, ...]:
        """The gate's newest submissions and its newest pass, oldest first: nothing asks for the others."""
        newest = "SELECT seq FROM entries WHERE subject = :gate AND kind = 'gate' {} ORDER BY seq DESC LIMIT {}"
        passed = newest.format("AND body ->> '$.state' = 'passed'", 1)
        wanted = f"SELECT seq FROM ({newest.format('', 3)}) UNION SELECT seq FROM ({passed})"
        found = self.store.ledger.rows(f"{wanted} ORDER BY seq", {"gate": gate})
        entries = (next(self.store.entries("gate", gate, seq - 1)) for (seq,) in found)
        return tuple(recorded for entry in entries if (recorded := recorded_of(entry)))

    def facts(self, gate: Gate) -> Facts:
        proposal = self.proposals[-1].manifest if self.proposals else None
        tuning = [e for e in self._held(proposal.tuning)] if proposal and "tuning_record" in gate.conditions else []
        unexplained = unexplained_failures(self.store) if "divergences_have_repros" in gate.conditions else []
        versions = {item.manifest.digest: item.manifest.version for item in self.proposals}
        return Facts(proposal=proposal, frozen=self.frozen, tuning=tuning, unexplained=unexplained, versions=versions)

    def _held(self, ids: Iterable[str]) -> list[Evidence]:
        seen = (self.source.by_id(evidence_id) for evidence_id in ids)
        return [item.evidence for item in seen if item and item.evidence.tool == "ab_benchmark"]

    def board(self, today: Today) -> dict[str, GateStatus]:
        """Every gate's status as of now."""
        return evaluate_all(today, self.source, self.facts, self.histories)


def proposal_of(entry: Entry) -> Proposal | None:
    try:
        row = BaselineRow.model_validate(entry.body)
    except ValidationError:
        return None
    return Proposal(entry.seq, entry.at, entry.actor, row.manifest) if row.manifest.digest == row.digest else None


def recorded_of(entry: Entry) -> Recorded | None:
    try:
        row = GateRow.model_validate(entry.body)
    except ValidationError:
        return None
    return Recorded(entry.seq, entry.at, entry.actor, row, entry.hash) if row.gate == entry.subject else None


def vote_of(entry: Entry, reviewers: Timeline) -> Vote | None:
    """The vote of a `signature` row, with why it does not hold; None when the row holds no decision at all."""
    try:
        signed = Signed.model_validate(entry.body)
        decision = Decision.model_validate_json(signed.message)
    except ValidationError:
        return None
    return Vote(entry.seq, entry.at, signed.signer, decision, vote_problem(entry, signed, decision, reviewers))


def vote_problem(entry: Entry, signed: Signed, decision: Decision, reviewers: Timeline) -> str:
    """Why a decision of the chain does not hold: form, subject, reviewer, signature. Empty when it holds."""
    in_force = reviewers.at(entry.seq)
    if decision.subject.digest != decision.subject_digest or decision.subject.gate != decision.gate:
        return "the decision does not agree with itself"
    if pretty(decision) != signed.message or entry.subject != decision.gate:
        return "the signed text is not the decision recorded"
    if decision.head.seq >= entry.seq:
        return "the decision is about a history that was not there yet"
    if signed.signer not in names(in_force) or signed.signer.startswith(RUNNER):
        return f"{signed.signer} was no reviewer then"
    if decision.reviewers != set_digest(in_force):
        return "it was made under another reviewer set"
    failed = sshsig.verify(signed.message, signed.signature, signed.signer, in_force)
    return f"signature: {failed}" if failed else ""


def frozen_of(proposals: Iterable[Proposal], votes: Iterable[Vote]) -> Manifest | None:
    by_digest = {item.manifest.digest: item for item in proposals}
    frozen: list[str] = []
    for vote in votes:
        digest = vote.subject.baseline or ""
        if vote.problem or vote.decision.gate != "C1" or digest not in by_digest or by_digest[digest].seq > vote.seq:
            continue
        frozen = [known for known in frozen if known != digest] + ([digest] if vote.choice == "approve" else [])
    return by_digest[frozen[-1]].manifest if frozen else None
