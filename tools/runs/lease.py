"""The supervisor's side of the lease: held by a lock, renewed by a change; and how others see whether it lives."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

START_GRACE_S: Final = 60.0
"""How long a run may wait for its supervisor to take the lease; a busy machine imports slowly."""


class HeldLease:
    """An exclusive lock on the lease file, which the kernel frees when the holder dies, however it dies."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._beats = descriptor, 0

    @classmethod
    def take(cls, path: Path) -> HeldLease | None:
        """None when somebody else holds it, or it is not there."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return cls(descriptor)

    def renew(self) -> None:
        """Changes content and time; either alone tells a rank that the supervisor lives, also on a full disk."""
        self._beats += 1
        with suppress(OSError):
            os.pwrite(self._descriptor, f"{self._beats:020d} {os.getpid():10d}\n".encode("ascii"), 0)
        with suppress(OSError):
            os.utime(self._descriptor)

    def release(self) -> None:
        os.close(self._descriptor)


def age_s(path: Path) -> float | None:
    """Seconds from the last change, also when the clock was set back since; None when there is no lease file."""
    try:
        return abs(time.time() - path.stat().st_mtime)
    except OSError:
        return None


def holder(path: Path) -> int | None:
    """The pid that the lease names; the caller checks that it is the one it means."""
    try:
        return int(path.read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        return None
