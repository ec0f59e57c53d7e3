"""Kill -9 of one process of a run at a random moment; what must be true ten seconds later."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio

from bitgate.store import Store, verify_ledger
from bitgate.store.records import Run
from bitgate.tools.config.project import Project
from bitgate.tools.engines.worker.processes import descendants, table
from bitgate.tools.runs.control import mark_lost_runs, run_folder, wait_run
from bitgate.tools.runs.lease import holder
from bitgate.tools.runs.processes import marked_run

HERE: Final = Path(__file__).parent
VICTIMS: Final = ("server", "supervisor", "launcher", "guard", "engine", "daemon")
ORPHAN_LIMIT_S: Final = 10.0


@dataclass(frozen=True)
class Moment:
    """`after_s` counts from the victim's being there; None waits until the engine is in a step."""

    victim: str
    after_s: float | None
    request: dict[str, Any]


def moment(seed: int, request: dict[str, Any], longest_s: float) -> Moment:
    """The same seed is the same victim at the same time."""
    chance = random.Random(seed)
    return Moment(VICTIMS[seed % len(VICTIMS)], chance.uniform(0, longest_s), request)


@dataclass(frozen=True)
class Aftermath:
    killed: list[int]
    orphans_gone_s: float
    run: Run
    verdicts: list[str]
    verified: bool


def kill_one(project: Project, chosen: Moment) -> Aftermath:
    """Starts a run from a server of its own, kills the victim, and looks at what remains."""
    command = [sys.executable, str(HERE / "tiny_server.py"), str(project.root), json.dumps(chosen.request)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8") as server:
        assert server.stdout is not None
        run_id = server.stdout.readline().strip()
        family = Family(project, run_id, server.pid)
        until(lambda: bool(family.members(chosen.victim)) or server.poll() is not None)
        if chosen.after_s is None:
            until(family.in_step)
        else:
            until(lambda: server.poll() is not None, chosen.after_s)
        killed = family.kill(chosen.victim)
        killed_at = time.monotonic()
        # A run whose daemon, or nothing, was killed goes on; it is ended like by a server that dies.
        if chosen.victim == "daemon" or not killed:
            server.kill()
        until(lambda: not marked_run(run_id) and not family.alive(), ORPHAN_LIMIT_S + 5)
        gone = time.monotonic() - killed_at
        mark_lost_runs(project)
        run = anyio.run(wait_run, project, run_id, 20)
        server.kill()
    with Store.open(project.ledger) as store:
        verdicts = [evidence.verdict for evidence in store.list_evidence()]
    return Aftermath(killed, gone, run, verdicts, verify_ledger(project.ledger).ok)


@dataclass
class Family:
    """The processes of one run, found from outside by the tree under its supervisor."""

    project: Project
    run_id: str
    server: int

    @property
    def supervisor(self) -> int | None:
        processes = table()
        wanted = os.fsencode(str(run_folder(self.project, self.run_id).path))
        return next(
            (pid for pid in descendants(self.server, processes) if wanted in _cmdline(pid).split(b"\0")), None
        ) or holder(run_folder(self.project, self.run_id).lease)

    def members(self, victim: str) -> list[int]:
        if victim == "server":
            return [self.server]
        supervisor = self.supervisor
        if supervisor is None or victim == "supervisor":
            return [supervisor] if supervisor else []
        processes = table()
        below = descendants(supervisor, processes)
        workers = [
            pid
            for pid in below
            if b"bitgate_worker/run.py" in _cmdline(pid) and b"torch.distributed.run" not in _cmdline(pid)
        ]
        guards = [pid for pid in workers if processes[pid][0] not in workers]
        children = [pid for pid in workers if processes[pid][0] in guards]
        # A daemon that left its session has fallen to the guard, where it looks like the engine.
        engines = [pid for pid in children if _session(pid) == _session(processes[pid][0])]
        found = {
            "launcher": [pid for pid in below if processes[pid][0] == supervisor and pid not in engines],
            "guard": guards,
            "engine": engines,
            "daemon": [pid for pid in children if pid not in engines],
        }
        return found[victim]

    def in_step(self) -> bool:
        note = run_folder(self.project, self.run_id).read_progress()
        return note is not None and "step" in note.message

    def kill(self, victim: str) -> list[int]:
        """Kills one of them, whichever is there; what was killed."""
        targets = self.members(victim)[:1]
        return [pid for pid in targets if _killed(pid)]

    def alive(self) -> list[int]:
        pid = holder(run_folder(self.project, self.run_id).lease)
        return [pid] if pid and os.fsencode(self.run_id) in _cmdline(pid) else []


def _cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _killed(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def until(condition: Any, limit_s: float = 60.0) -> None:
    """Waits for `condition()`, at most `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        select.select([], [], [], 0.02)
