"""The processes of one job on this host: tethered to the supervisor, drained, ended to the last descendant."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from bitgate.tools.engines.worker.logs import BoundedLog, secrets_of
from bitgate.tools.engines.worker.processes import descendants, pause, send, table
from bitgate.tools.errors import WorkerError
from bitgate.tools.runs.codes import advice
from bitgate.tools.runs.launchers import Command

MARK_JOB: Final = "BITGATE_JOB"
MARK_RUN: Final = "BITGATE_RUN"
_TETHER: Final = str(Path(__file__).with_name("tether.py"))
_KILL_LIMIT_S: Final = 6.0


class Process:
    """One launcher command. Its output goes through a pipe into a bounded log, drained by a thread."""

    def __init__(self, command: Command, env: Mapping[str, str], cwd: Path, log: Path, log_limit: int) -> None:
        environment = {**env, **command.env}
        self.holds_stdin = command.holds_stdin
        self._popen = subprocess.Popen(
            [sys.executable, "-I", "-S", _TETHER, str(os.getpid()), "--", *command.argv],
            env=environment,
            cwd=cwd,
            stdin=subprocess.PIPE if command.holds_stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.pid = self._popen.pid
        self._log = BoundedLog(log, log_limit, secrets_of(environment.items()))
        assert self._popen.stdout is not None
        self._pump = threading.Thread(target=_pump, args=(self._popen.stdout, self._log), daemon=True)
        self._pump.start()

    @property
    def exit_code(self) -> int | None:
        """None while it runs; -N when signal N killed it."""
        return self._popen.poll()

    def ask_to_end(self) -> None:
        if self._popen.stdin is not None:
            with suppress(OSError):
                self._popen.stdin.close()
        send([self.pid], signal.SIGTERM)

    def close(self) -> None:
        """After everything below it is dead: takes what is left in the pipe."""
        self._popen.wait()
        if self._popen.stdin is not None:
            with suppress(OSError):
                self._popen.stdin.close()
        self._pump.join(timeout=5)
        if not self._pump.is_alive():
            assert self._popen.stdout is not None
            self._popen.stdout.close()
            self._log.close()


def _pump(source: IO[bytes], log: BoundedLog) -> None:
    with suppress(OSError, ValueError):
        while data := os.read(source.fileno(), 1 << 16):
            log.write(data)
    log.flush()


def check_program(argv: tuple[str, ...], env: Mapping[str, str]) -> None:
    """Raises WorkerError `launcher_not_found` when the command's program is not on this host."""
    if shutil.which(argv[0], path=env.get("PATH")) is None:
        raise WorkerError(
            "launcher_not_found", f"the launcher's program {argv[0]!r} is not on PATH. {advice('launcher_not_found')}"
        )


def end_job(processes: Iterable[Process], mark: str, grace_s: float) -> list[int]:
    """Ends the job's processes and all they started; returns what could not be ended.

    What left its launcher's tree has fallen to this process, the subreaper, and is known by the mark in its environ.
    """
    listed = list(processes)
    if any(process.exit_code is None for process in listed):
        for process in listed:
            process.ask_to_end()
    start = time.monotonic()
    while left := _of_job(listed, mark):
        waited = time.monotonic() - start
        if waited > grace_s + _KILL_LIMIT_S:
            return left
        launchers_gone = all(process.exit_code is not None for process in listed)
        if waited > grace_s or launchers_gone:
            send(left, signal.SIGKILL)
        pause(0.02)
    return []


def _of_job(processes: list[Process], mark: str) -> list[int]:
    running = [process.pid for process in processes if process.exit_code is None]
    return sorted({pid for root in running for pid in (root, *descendants(root))} | set(strays(mark)))


def strays(mark: str) -> list[int]:
    """Children of this process that were not started by it directly but carry the job's mark, with all below them."""
    me, processes = os.getpid(), table()
    roots = [
        pid
        for pid, (parent, state) in processes.items()
        if parent == me and state not in ("Z", "X") and _marked(pid, mark)
    ]
    return [pid for root in roots for pid in (root, *descendants(root, processes))]


def marked_run(run_id: str) -> list[int]:
    """Processes on this host that a run started, wherever in the tree they are now."""
    wanted = f"{MARK_RUN}={run_id}"
    return [pid for pid in table() if pid != os.getpid() and _has(pid, wanted)]


def end_marked(run_id: str, limit_s: float = 5.0) -> None:
    """Kills what a dead supervisor's run left on this host, if anything."""
    start = time.monotonic()
    while (left := marked_run(run_id)) and time.monotonic() - start < limit_s:
        send(left, signal.SIGKILL)
        pause(0.02)


def _marked(pid: int, mark: str) -> bool:
    return _has(pid, f"{MARK_JOB}={mark}")


def _has(pid: int, assignment: str) -> bool:
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return os.fsencode(assignment) in data.split(b"\0")
