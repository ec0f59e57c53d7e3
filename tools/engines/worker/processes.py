"""Linux process trees: who descends from whom, being the one that orphans fall back to, and ending all of them.

A process group or session does not bound what an engine starts: a double fork with setsid leaves both. A child
subreaper does: every orphan below it becomes its child, so the tree under it is always complete in /proc.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
from collections.abc import Callable, Collection
from contextlib import suppress

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def become_subreaper() -> None:
    """From now on orphans below this process become its children."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def signal_when_parent_dies(number: int) -> None:
    """Ask for signal `number` when the *thread* that started this process ends; `getppid` tells of the process."""
    _prctl(_PR_SET_PDEATHSIG, number)


def table() -> dict[int, tuple[int, str]]:
    """pid -> (parent, state letter) of every process that is visible."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                # The command name may hold spaces and brackets; the fields after the last ")" are plain.
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                found[int(name)] = (int(parent), state.decode())
    return found


def descendants(root: int, processes: dict[int, tuple[int, str]] | None = None) -> list[int]:
    """Every process below `root` that still runs, children first, zombies left out."""
    processes = table() if processes is None else processes
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in processes.items():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    level = [root]
    while level:
        level = [child for pid in level for child in children.get(pid, ())]
        found += level
    return [pid for pid in found if processes[pid][1] not in ("Z", "X")]


def reap() -> dict[int, int]:
    """Wait for the dead children of this process; pid -> wait status. Reads nothing of /proc, long on a large host."""
    statuses = {}
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            statuses[ended[0]] = ended[1]
    return statuses


def send(pids: Collection[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end_descendants(grace_s: float, limit_s: float, idle: Callable[[float], object]) -> list[int]:
    """SIGTERM to all descendants, SIGKILL after `grace_s`, again and again until none is left or `limit_s` is over.

    `idle(seconds)` is called while waiting; it should reap. Returns what could not be ended.
    """
    start, me = time.monotonic(), os.getpid()
    asked: set[int] = set()
    while left := descendants(me):
        waited = time.monotonic() - start
        if waited > limit_s:
            return left
        if waited < grace_s:
            send([pid for pid in left if pid not in asked], signal.SIGTERM)
            asked.update(left)
        else:
            send(left, signal.SIGKILL)
        idle(0.02)
    idle(0.0)
    return []


def pause(seconds: float) -> None:
    select.select([], [], [], seconds)
