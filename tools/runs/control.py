"""Runs from outside: start one, wait for it, cancel it, find those whose supervisor is gone.

Nothing here lives on: any process of the project may wait for or cancel a run that another one started.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import anyio
from anyio.to_thread import run_sync
from pydantic import JsonValue

from bitgate.store import Store
from bitgate.store.errors import StoreError
from bitgate.store.records import Run, RunState
from bitgate.tools.config.project import Project
from bitgate.tools.engines.worker.processes import pause, send
from bitgate.tools.redaction import redact
from bitgate.tools.registry import TOOLS, ToolRequest
from bitgate.tools.runs.codes import advice
from bitgate.tools.runs.folder import ProgressNote, RunFolder, StartedRun
from bitgate.tools.runs.lease import START_GRACE_S, HeldLease, age_s, holder
from bitgate.tools.runs.processes import end_marked
from bitgate.tools.runs.tails import tail_of

OnProgress = Callable[[float, float | None, str], Awaitable[None]]

POLL_S: Final = 0.2
CANCEL_GRACE_S: Final = 12.0
ACTOR: Final = "bitgate"


def run_folder(project: Project, run_id: str) -> RunFolder:
    return RunFolder(project.runs_dir / run_id)


async def start_run(
    project: Project, tool_name: str, request: ToolRequest, *, actor: str, known: Mapping[str, JsonValue] | None = None
) -> Run:
    """Checks the request, records the run and starts its supervisor, which dies with this process.

    `known`: what the tool must know of the ledger, as values; it goes to the run's folder, not into the ledger.

    Raises:
        RequestError: the request cannot be run; nothing was written.
    """
    tool = TOOLS.find(tool_name)
    await run_sync(tool.plan, project, request)
    return await run_sync(_start, project, tool_name, request, actor, dict(known or {}))


def _start(project: Project, tool_name: str, request: ToolRequest, actor: str, known: dict[str, JsonValue]) -> Run:
    body = request.model_dump(mode="json")
    with Store.open(project.ledger) as store:
        run = store.start_run(tool=tool_name, request=redacted_request(body), actor=actor)
    try:
        folder = run_folder(project, run.id)
        started = StartedRun(
            run_id=run.id, tool=tool_name, request=body, project=str(project.root), actor=actor, known=known
        )
        folder.create(started)
        process = _spawn(folder)
    except OSError as error:
        _finish(project, run.id, "failed", "internal", f"The supervisor could not be started: {error}.")
        raise
    threading.Thread(target=_after, args=(process, project, run.id), daemon=True, name=f"bitgate-{run.id}").start()
    return run


def redacted_request(body: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """As the ledger keeps it; the supervisor reads the whole request from the run's folder."""
    redacted = redact(body)
    assert isinstance(redacted, dict)
    return redacted


def supervisor_command(folder: RunFolder) -> list[str]:
    return [sys.executable, "-P", "-m", "bitgate.tools.runs.supervisor", str(folder.path), str(os.getpid())]


def _spawn(folder: RunFolder) -> subprocess.Popen[bytes]:
    with folder.log.open("ab") as log:
        return subprocess.Popen(
            supervisor_command(folder),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder.path,
            start_new_session=True,
        )


def _after(process: subprocess.Popen[bytes], project: Project, run_id: str) -> None:
    """When the supervisor is gone the run has ended, or is lost now and not when somebody next looks."""
    process.wait()
    with suppress(StoreError, OSError):
        mark_lost(project, run_id, gone=True)


async def wait_run(project: Project, run_id: str, seconds: float | None, on_progress: OnProgress | None = None) -> Run:
    """The run when it has ended, or as it is after `seconds` (None: without limit). Giving up does not end it.

    `on_progress` is awaited at most five times a second, also when nothing moved.

    Raises:
        NotFound: no such run.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    folder, looked = run_folder(project, run_id), time.monotonic()
    with Store.open(project.ledger) as store:
        while True:
            run = store.get_run(run_id)
            now = time.monotonic()
            if run.state != "running" or (deadline is not None and now >= deadline):
                return run
            if now - looked >= 1.0:
                looked = now
                await run_sync(mark_lost, project, run_id)
            note = folder.read_progress() if on_progress is not None else None
            if note is not None and on_progress is not None:
                await on_progress(note.done, note.total, note.message)
            await anyio.sleep(POLL_S if deadline is None else max(0.0, min(POLL_S, deadline - now)))


async def cancel_run(project: Project, run_id: str, *, actor: str | None = None) -> Run:
    """Ends a run and everything it started, and waits for that. A run that has ended already stays as it is.

    Raises:
        NotFound: no such run.
    """
    return await run_sync(_cancel, project, run_id, actor)


def _cancel(project: Project, run_id: str, actor: str | None) -> Run:
    folder = run_folder(project, run_id)
    with Store.open(project.ledger) as store:
        if store.get_run(run_id).state == "running" and folder.path.is_dir():
            folder.cancel.write_text(actor or "", encoding="utf-8")
        start, killed = time.monotonic(), False
        while (run := store.get_run(run_id)).state == "running":
            if not killed and time.monotonic() - start > CANCEL_GRACE_S:
                killed = _kill_supervisor(folder, run_id)
            if not _lives(folder, run):
                end_marked(run_id)
                _finish(project, run_id, "cancelled", "cancelled", "The run was cancelled.", actor)
            pause(0.05)
        return run


def _kill_supervisor(folder: RunFolder, run_id: str) -> bool:
    """For one that does not react, such as one that is stopped or deep in C code."""
    pid = holder(folder.lease)
    with suppress(OSError):
        if pid and os.fsencode(run_id) in Path(f"/proc/{pid}/cmdline").read_bytes():
            send([pid], signal.SIGKILL)
    return True


def mark_lost_runs(project: Project) -> list[Run]:
    """Ends every `running` row whose supervisor is gone, and what it left running on this host; returns those runs."""
    if not project.ledger.exists():
        return []
    with Store.open(project.ledger) as store:
        running = store.running_runs()
    return [run for run in running if mark_lost(project, run.id)]


def mark_lost(project: Project, run_id: str, *, gone: bool = False) -> bool:
    """True when this call found the run without a supervisor and ended it. `gone`: the caller saw it exit."""
    with Store.open(project.ledger) as store:
        run = store.get_run(run_id)
    folder = run_folder(project, run_id)
    if run.state != "running" or (not gone and _lives(folder, run)):
        return False
    # Whoever holds the lock writes the end; a supervisor that starts this late finds it taken, or the run ended.
    lease = HeldLease.take(folder.lease)
    if lease is None and folder.lease.exists():
        return False
    try:
        end_marked(run_id)
        return _finish(project, run_id, "lost", "lost", _last_words(folder), ACTOR)
    finally:
        if lease is not None:
            lease.release()


def _last_words(folder: RunFolder) -> str:
    said = tail_of(folder.log, lines=10)
    return "The run has no supervisor any more." + (f" Its last words:\n{said}\n" if said else "")


def _lives(folder: RunFolder, run: Run) -> bool:
    """A supervisor holds the lease, or may still be about to."""
    age = age_s(folder.lease)
    if age is None:
        return _seconds_from(run.started_at) < START_GRACE_S
    lease = HeldLease.take(folder.lease)
    if lease is None:
        return True
    lease.release()
    not_taken_yet = holder(folder.lease) is None
    return not_taken_yet and age < START_GRACE_S


def _seconds_from(time_text: str) -> float:
    """A clock that was set back must not keep a run alive until it has caught up."""
    return abs((datetime.now(UTC) - datetime.fromisoformat(time_text)).total_seconds())


def _finish(project: Project, run_id: str, state: RunState, code: str, message: str, actor: str | None = None) -> bool:
    """False when another was faster."""
    with Store.open(project.ledger) as store:
        try:
            store.finish_run(run_id, state, error=f"{message} {advice(code)}", error_code=code, actor=actor)
        except StoreError as error:
            if error.code == "run_not_running":
                return False
            raise
    return True


def progress_of(project: Project, run_id: str) -> ProgressNote | None:
    return run_folder(project, run_id).read_progress()
