"""The supervisor's watch: a thread that renews the lease and ends the run when it must, whatever the tool is doing."""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from typing import Final

from bitgate.tools.runs.ending import Outcome, ended
from bitgate.tools.runs.folder import RunFolder
from bitgate.tools.runs.lease import HeldLease

BEAT_S: Final = 1.0
TURN_S: Final = 0.2
STUCK_S: Final = 60.0
"""A supervisor that does not get to its watch for so long is stuck, and nobody could end it but a kill -9."""


class Signals:
    """Signals as bytes on a pipe, written by the C handler: they arrive even when the main thread is deep in C code."""

    def __init__(self) -> None:
        self.reading, writing = os.pipe()
        os.set_blocking(writing, False)
        os.set_blocking(self.reading, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)

    def wait(self, seconds: float) -> bytes:
        """The signals that came within `seconds`."""
        readable, _, _ = select.select([self.reading], [], [], seconds)
        return os.read(self.reading, 256) if readable else b""


class Watch(threading.Thread):
    def __init__(
        self,
        folder: RunFolder,
        lease: HeldLease,
        signals: Signals,
        parent: int,
        limit_s: float,
        end: Callable[[Outcome], None],
    ) -> None:
        super().__init__(name="bitgate-watch", daemon=True)
        self._folder, self._lease, self._signals, self._parent, self._end = folder, lease, signals, parent, end
        self._limit_s = limit_s
        self._deadline = time.monotonic() + limit_s

    def run(self) -> None:
        beaten = float("-inf")
        while True:
            if time.monotonic() - beaten >= BEAT_S:
                beaten = time.monotonic()
                self._lease.renew()
                # A thread of C that needs no interpreter lock: whoever holds that longer than this ends here, and with
                # it all that the kernel and the lease tie to this process.
                faulthandler.dump_traceback_later(STUCK_S, exit=True, file=2)
            if outcome := self._reason_to_end(self._signals.wait(TURN_S)):
                self._end(outcome)

    def _reason_to_end(self, signals: bytes) -> Outcome | None:
        if self._folder.cancel.exists():
            return ended("cancelled", "cancelled", "The run was cancelled.", actor=_canceller(self._folder))
        # SIGHUP is what the kernel sends when the thread that started us ended; only its process counts.
        if os.getppid() != self._parent:
            return ended("lost", "parent_gone", "The process that started the run ended before it.")
        if signal.SIGTERM in signals or signal.SIGINT in signals:
            number = signal.SIGTERM if signal.SIGTERM in signals else signal.SIGINT
            return ended("cancelled", "cancelled", f"The run's supervisor got {number.name}.")
        if time.monotonic() > self._deadline:
            return ended("timed_out", "timed_out", f"The run was not done after {self._limit_s:g} s.")
        return None


def _canceller(folder: RunFolder) -> str | None:
    try:
        return folder.cancel.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
