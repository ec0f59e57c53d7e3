"""How far this rank is, in a file that the supervisor reads; at most five updates a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from .files import write_json

INTERVAL_S = 0.2


class Progress:
    """`report(done, total, message)` for phases of the job, `within(share, message)` for the inside of the current one.

    Never raises: a full disk is reported by what matters.
    """

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._written = float("-inf")
        self._done, self._total = 0.0, 1.0

    def report(self, done: float, total: float, message: str) -> None:
        self._done, self._total = done, max(total, 1e-9)
        self._write(done, message, always=True)

    def within(self, share: float, message: str) -> None:
        self._write(self._done + min(max(share, 0.0), 1.0), message, always=False)

    def _write(self, done: float, message: str, *, always: bool) -> None:
        now = self._clock()
        if not always and now - self._written < INTERVAL_S:
            return
        self._written = now
        with suppress(OSError):  # a full disk is reported by what matters, not by this
            write_json(
                self._path,
                {"phase": self._done, "share": min(done / self._total, 1.0), "message": message[:300]},
                durable=False,
            )
