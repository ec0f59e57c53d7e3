"""The lease: a file that the supervisor changes every second. Who no longer sees it change ends itself.

Age is measured with this host's monotonic clock since the last *change* seen, so clocks of two hosts need not agree.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

from .processes import descendants, send

EXIT_LEASE_LOST = 75


class Lease:
    def __init__(self, path: str, max_age_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.path, self.max_age_s, self._clock = path, max_age_s, clock
        self._seen_at = clock()
        self._seen = self._read()

    def fresh(self) -> bool:
        """False once the file has not changed for `max_age_s`; a file that cannot be read has not changed."""
        now = self._read()
        if now is not None and now != self._seen:
            self._seen, self._seen_at = now, self._clock()
        return self._clock() - self._seen_at <= self.max_age_s

    def _read(self) -> tuple[int, bytes] | None:
        # Opening it is what makes NFS ask the server; a stat alone may be answered from a cache a minute old.
        try:
            with open(self.path, "rb") as file:
                return os.fstat(file.fileno()).st_mtime_ns, file.read(64)
        except OSError:
            return None


class LeaseThread(threading.Thread):
    """Second line of defence, in the engine's own process; the guard (guard.py), which none can block, is first."""

    def __init__(self, lease: Lease) -> None:
        super().__init__(name="bitgate-lease", daemon=True)
        self._lease = lease
        self._stop = threading.Event()

    def run(self) -> None:
        while not self._stop.wait(1.0):
            if not self._lease.fresh():
                send(descendants(os.getpid()), signal.SIGKILL)
                os._exit(EXIT_LEASE_LOST)

    def stop(self) -> None:
        self._stop.set()
