"""What a replay looks up: rows by number, evidence by id, and what was learned so far."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from functools import cache

from bitgate.gates.ledger import Proposal
from bitgate.gates.reviewers import Timeline
from bitgate.gates.rows import Subject
from bitgate.gates.status import Recorded, Vote
from bitgate.store.chain import Entry
from bitgate.store.records import Evidence

_COLUMNS = "seq, at, kind, subject, actor, body, prev_hash, hash"


class Index:
    """One read transaction over a ledger."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.reviewers = Timeline()
        self.votes: list[Vote] = []
        self.proposals: list[Proposal] = []
        self.submissions: list[Recorded] = []
        self.hash_at = cache(self._hash_at)
        self.evidence = cache(self._evidence)

    def entries(self, kind: str) -> Iterator[Entry]:
        for row in self.connection.execute(f"SELECT {_COLUMNS} FROM entries WHERE kind = ? ORDER BY seq", (kind,)):
            seq, at, name, subject, actor, body, prev_hash, digest = row
            yield Entry(seq, at, name, subject, actor, json.loads(body), prev_hash, digest)

    def _hash_at(self, seq: int) -> str | None:
        found = self.connection.execute("SELECT hash FROM entries WHERE seq = ?", (seq,)).fetchone()
        return found[0] if found else ("0" * 64 if seq == 0 else None)

    def seq_of(self, head: str | None) -> int | None:
        found = self.connection.execute("SELECT seq FROM entries WHERE hash = ?", (head,)).fetchone() if head else None
        return int(found[0]) if found else None

    def _evidence(self, evidence_id: str) -> tuple[int, str, str, Evidence] | None:
        sql = "SELECT seq, hash, actor, body FROM entries WHERE subject = ? AND kind = 'evidence'"
        found = self.connection.execute(sql, (evidence_id,)).fetchone()
        return (found[0], found[1], found[2], Evidence.model_validate_json(found[3])) if found else None

    def known(self, evidence_id: str, before: int) -> bool:
        found = self.evidence(evidence_id)
        return found is not None and found[0] < before

    def subject_problem(self, subject: Subject, at: int) -> str:
        """Why the evidence that a subject refers to is not what the ledger held then."""
        for ref in subject.evidence:
            found = self.evidence(ref.id)
            if found is None or found[0] >= at:
                return f"evidence {ref.id} is not in the ledger before it"
            if found[1] != ref.row:
                return f"evidence {ref.id} is not the row it was about"
            if (found[3].verdict, found[3].grade) != (ref.verdict, ref.grade):
                really = f"{found[3].verdict} and {found[3].grade}"
                return f"evidence {ref.id} is {really}; it says {ref.verdict} and {ref.grade}"
        return ""
