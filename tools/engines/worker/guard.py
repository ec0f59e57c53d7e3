"""The guard of one rank: it starts the engine's process, keeps its log, and ends everything below it when it must.

The engine may hang in C code with the GIL held, leave its session, or fork twice; the guard runs none of its code, is
the subreaper of all it starts, and therefore cannot be blocked or escaped. It ends its tree when
- the lease is old (the supervisor is gone, perhaps on another host),
- its parent died, its standard input closed (--watch-stdin), or it is asked to (SIGTERM, SIGINT),
- the engine's process is over, whatever that left behind.
If the guard itself is killed the kernel kills the engine's process (PR_SET_PDEATHSIG), and the supervisor the rest.
"""

from __future__ import annotations

import argparse
import os
import selectors
import signal
import sys
import time
from contextlib import suppress

from .files import write_json
from .job import Job, Place
from .lease import EXIT_LEASE_LOST, Lease
from .logs import BoundedLog, secrets_of
from .processes import become_subreaper, end_descendants, reap, send, signal_when_parent_dies

_TERM_GRACE_S = 1.0
_KILL_LIMIT_S = 5.0
DUMP_SIGNAL = signal.SIGUSR2
"""main.py has faulthandler print every thread's stack on it."""


def main(options: argparse.Namespace) -> int:
    job, place = Job.read(options.job), Place.of(options, os.environ)
    folder = os.path.join(job.out, f"rank{place.rank:05d}")
    os.makedirs(folder, exist_ok=True)
    become_subreaper()
    parent = os.getppid()
    signal_when_parent_dies(signal.SIGHUP)
    reading, writing = os.pipe()
    engine = os.fork()
    if engine == 0:
        os.close(reading)
        _become_engine(options.job, place, folder, writing)
    os.close(writing)
    guard = Guard(job, folder, parent, engine, reading, options.watch_stdin)
    return guard.run()


def _become_engine(job: str, place: Place, folder: str, output: int) -> None:
    """In the child: never returns."""
    guard = os.getppid()
    signal_when_parent_dies(signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(output)
    code = 70
    try:
        from .main import run_engine

        code = run_engine(job, place, folder)
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        # The result is on disk; interpreters that hold an engine are known to hang in their exit handlers.
        os._exit(code)


class Guard:
    def __init__(self, job: Job, folder: str, parent: int, engine: int, output: int, watch_stdin: bool) -> None:
        self._folder, self._parent, self._engine, self._output = folder, parent, engine, output
        self._lease = Lease(job.lease, job.lease_max_age_s)
        self._log = BoundedLog(os.path.join(folder, "log.txt"), job.log_limit, secrets_of(os.environ.items()))
        self._status: int | None = None
        self._ending: str | None = None
        self._selector = selectors.DefaultSelector()
        self._wakeup = self._catch_signals()
        os.set_blocking(output, False)
        self._selector.register(output, selectors.EVENT_READ, self._on_output)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._on_signals)
        if watch_stdin:
            with suppress(PermissionError):  # a regular file or /dev/null never closes
                self._selector.register(0, selectors.EVENT_READ, self._on_stdin)

    def run(self) -> int:
        checked = time.monotonic()
        while self._status is None and self._ending is None:
            self._turn(0.5)
            if time.monotonic() - checked >= 0.5:
                checked = time.monotonic()
                self._check()
        if self._ending is not None and self._status is None:
            self._say(f"bitgate: ended: {self._ending}; where every thread was:")
            send([self._engine], DUMP_SIGNAL)
            self._turn(0.2)
        left = end_descendants(0.0 if self._status is not None else _TERM_GRACE_S, _KILL_LIMIT_S, self._turn)
        self._drain()
        return self._finish(left)

    def _finish(self, left: list[int]) -> int:
        code = os.waitstatus_to_exitcode(self._status) if self._status is not None else -signal.SIGKILL
        body = {
            "code": max(code, 0),
            "signal": max(-code, 0),
            "ending": self._ending,
            "left": left,
            "dropped": self._log.dropped,
        }
        self._log.close()
        with suppress(OSError):
            write_json(os.path.join(self._folder, "exit.json"), body)
        if self._ending == "lease_lost":
            return EXIT_LEASE_LOST
        return code if code >= 0 else 128 - code

    def _turn(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            key.data()
        self._reap()

    def _check(self) -> None:
        if not self._lease.fresh():
            self._ending = "lease_lost"
        elif os.getppid() != self._parent:
            self._ending = "parent_died"
        self._log.flush()

    def _reap(self) -> None:
        for pid, status in reap().items():
            if pid == self._engine:
                self._status = status

    def _on_output(self) -> None:
        with suppress(BlockingIOError):
            for _ in range(16):
                data = os.read(self._output, 1 << 16)
                if not data:
                    self._selector.unregister(self._output)
                    return
                self._log.write(data)

    def _drain(self) -> None:
        """What is still in the pipe; its writers are dead."""
        with suppress(BlockingIOError, OSError):
            while data := os.read(self._output, 1 << 16):
                self._log.write(data)

    def _on_signals(self) -> None:
        for number in os.read(self._wakeup, 256):
            if number in (signal.SIGTERM, signal.SIGINT):
                self._ending = self._ending or "terminated"
            # PDEATHSIG also comes when only the thread that forked us ended.
            elif number == signal.SIGHUP and os.getppid() != self._parent:
                self._ending = self._ending or "parent_died"

    def _on_stdin(self) -> None:
        if not os.read(0, 4096):
            self._selector.unregister(0)
            self._ending = self._ending or "input_closed"

    def _say(self, text: str) -> None:
        self._log.write(f"\n{text}\n".encode())

    @staticmethod
    def _catch_signals() -> int:
        """Signals as bytes on a pipe: nothing runs in a handler."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        return reading
