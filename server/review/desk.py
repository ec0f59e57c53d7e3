"""What the review page looks at: one project's ledger, the key to sign with, and whether the chain still verifies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bitgate.gates.ledger import LedgerView
from bitgate.gates.status import GateStatus
from bitgate.gates.today import Today
from bitgate.gates.verify import Verification, verify
from bitgate.server import gate_today
from bitgate.server.session import Session
from bitgate.store.store import Store


@dataclass(frozen=True)
class Checked:
    """The last verification, and the head it was of."""

    head: str
    result: Verification
    seconds: float


@dataclass
class ChainWatch:
    """Verifies beside the pages: a page never waits for it, and says when what it shows is of an older head."""

    path: Path
    reviewers: str | None = None
    check: Callable[..., Verification] = verify
    _last: Checked | None = None
    _running: threading.Thread | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def look(self, head: str) -> Checked | None:
        """The last result; starts a new verification when the chain has grown since."""
        with self._lock:
            stale = self._last is None or self._last.head != head
            if stale and (self._running is None or not self._running.is_alive()):
                self._running = threading.Thread(target=self._verify, args=(head,), daemon=True)
                self._running.start()
            return self._last

    def wait(self) -> None:
        """Until a verification that is running has ended."""
        if self._running is not None:
            self._running.join()

    def _verify(self, head: str) -> None:
        start = time.perf_counter()
        result = self.check(self.path, head=head, reviewers=self.reviewers)
        with self._lock:
            self._last = Checked(head, result, time.perf_counter() - start)


@dataclass
class Desk:
    """One reviewer's desk."""

    session: Session
    chain: ChainWatch
    key: Path | None = None

    @property
    def store(self) -> Store:
        return self.session.store

    def today(self) -> Today:
        return gate_today.today(self.session.project, self.store)

    def view(self) -> LedgerView:
        return LedgerView(self.store)

    def board(self) -> dict[str, GateStatus]:
        return self.view().board(self.today())
