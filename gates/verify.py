"""`bitgate verify`: is every row what was written, and may what was written be believed?"""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bitgate.gates.replay import Lie, Replay, replay
from bitgate.store.verify import VerifyReport, verify_ledger


@dataclass(frozen=True)
class Verification:
    """Both answers. `first` is the row to look at."""

    ledger: VerifyReport
    replay: Replay

    @property
    def ok(self) -> bool:
        return self.ledger.ok and self.replay.ok

    @property
    def first(self) -> Lie | None:
        """The first row that lies, whichever way; row 0 is the file as a whole."""
        found = [Lie(p.seq or 0, p.code, p.message) for p in self.ledger.problems] + self.replay.lies
        return min(found, key=lambda lie: (lie.seq == 0, lie.seq), default=None)

    @property
    def problems(self) -> list[Lie]:
        found = [Lie(p.seq or 0, p.code, p.message) for p in self.ledger.problems] + self.replay.lies
        return sorted(found, key=lambda lie: (lie.seq == 0, lie.seq))


def verify(
    path: Path, *, head: str | None = None, reviewers: str | None = None, artifacts: bool = True
) -> Verification:
    """Checks the ledger at `path` against what was pinned outside: a row's hash, the reviewers' allowed_signers text.

    Raises: store errors when the file cannot be read at all.
    """
    with ThreadPoolExecutor(1) as beside:  # the rows are hashed in Python, the replay is mostly SQLite's work
        replaying = beside.submit(replay, path, reviewers=reviewers, head=head)
        ledger = verify_ledger(path, head=head, artifacts=artifacts)
        try:
            return Verification(ledger, replaying.result())
        except (sqlite3.DatabaseError, ValueError) as error:
            lie = Lie(ledger.first_bad_seq or 0, "unreadable", f"its rows cannot be replayed: {error}")
            return Verification(ledger, Replay(lies=[lie]))
