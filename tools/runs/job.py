"""Runs one job on a side: starts its launcher, watches it, ends it, and concludes from what it left."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import anyio
from anyio.to_thread import run_sync
from pydantic import BaseModel, Field, ValidationError

from bitgate.tools.engines.jobs import Job
from bitgate.tools.engines.worker.files import write_json
from bitgate.tools.errors import WorkerError
from bitgate.tools.runs.codes import advice
from bitgate.tools.runs.context import SideToRun
from bitgate.tools.runs.diagnosis import conclude, rank_end
from bitgate.tools.runs.elsewhere import Elsewhere
from bitgate.tools.runs.exits import Exits
from bitgate.tools.runs.folder import RunFolder
from bitgate.tools.runs.interpreter import check_interpreter, side_environment
from bitgate.tools.runs.launchers import Launch, Start
from bitgate.tools.runs.limits import RunLimits
from bitgate.tools.runs.processes import MARK_JOB, MARK_RUN, Process, check_program, end_job
from bitgate.tools.runs.results import JobResult, rank_name
from bitgate.tools.runs.stage import stage_worker
from bitgate.tools.runs.tails import tail_of

LOOK_S: Final = 1.0
"""Longest pause between two looks at a job that goes on; of its end the kernel tells."""
POLL_S: Final = 0.2
"""The same where the kernel does not tell."""
LOST_RANK_GRACE_S: Final = 5.0
"""How long the other commands of a launch may go on after one of them failed."""

OnShare = Callable[[float, str], Awaitable[None]]


@dataclass
class JobRun:
    """One job on its way. `folder` is `jobs/<n>-<side>`."""

    run: RunFolder
    run_id: str
    folder: Path
    side: SideToRun
    job: Job
    limits: RunLimits
    elsewhere: Elsewhere
    on_share: OnShare
    env: dict[str, str] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)

    async def to_end(self, timeout_s: float) -> JobResult:
        started = time.monotonic()
        launch = await run_sync(self._prepare)
        try:
            # In the main thread: what a launcher's tether is bound to is the thread that forked it.
            self._start(launch)
            problem = await self._watch(Deadlines(timeout_s, self.limits.start_s, launch.world_size))
        finally:
            with anyio.CancelScope(shield=True):
                left = await run_sync(end_job, list(self.processes), self._mark, self.limits.stop_grace_s)
                await run_sync(self._tidy)
        if problem is not None:
            raise self._with_tail(problem, left)
        ends = [rank_end(Path(self.job.out), rank, launch.world_size) for rank in range(launch.world_size)]
        exits = [process.exit_code or 0 for process in self.processes]
        results = conclude(self.side.name, ends, exits, self._launcher_log(0))
        return JobResult(self.side.name, self.folder, results, time.monotonic() - started)

    @property
    def _mark(self) -> str:
        return f"{self.run_id}/{self.folder.name}"

    def _launcher_log(self, number: int) -> Path:
        return self.folder / ("launcher.log" if number == 0 else f"launcher.{number}.log")

    def _prepare(self) -> Launch:
        """Checks what can be checked, writes job.json, stages the worker."""
        python = self.side.python
        if python is None:
            raise WorkerError(
                "interpreter_not_found", f"side {self.side.name}: has no `python`. {advice('interpreter_not_found')}"
            )
        self.env = side_environment(python, self.side.env, os.environ)
        self.env |= {MARK_RUN: self.run_id, MARK_JOB: self._mark}
        job_file = self.folder / "job.json"
        env_file = self.folder / "env.json"
        start = Start(
            python=python,
            script=stage_worker(self.run.stage),
            job=job_file,
            name=f"bitgate-{self.run_id}-{self.folder.name}".replace("_", "-"),
            folder=self.run.path,
            env=dict(self.side.env),
            env_file=env_file,
            reads=tuple(Path(path) for path in (self.job.model_path, self.job.module) if path and os.path.isabs(path)),
            user=f"{os.getuid()}:{os.getgid()}",
        )
        launch = self.side.launcher.launch(start)
        if launch.local_python:
            check_interpreter(python, self.env)
        for command in launch.commands:
            check_program(command.argv, self.env)
        write_json(job_file, self._bounded_job().model_dump(mode="json"))
        if launch.env_file:
            _write_private(env_file, {**self.side.env, MARK_RUN: self.run_id, MARK_JOB: self._mark})
        return launch

    def _bounded_job(self) -> Job:
        return self.job.model_copy(
            update={
                "log_limit": self.limits.log,
                "lease_max_age_s": self.limits.lease_max_age_s,
                "lease": str(self.run.lease),
            }
        )

    def _start(self, launch: Launch) -> None:
        self.elsewhere.started(self._mark, launch.stop, self.env)
        for number, command in enumerate(launch.commands):
            log = self._launcher_log(number)
            self.processes.append(Process(command, self.env, self.folder, log, self.limits.log))

    async def _watch(self, deadlines: Deadlines) -> WorkerError | None:
        """Until every command has ended, or the reason why they must be."""
        with Exits(process.pid for process in self.processes) as exits:
            return await self._look_after(deadlines, exits)

    async def _look_after(self, deadlines: Deadlines, exits: Exits) -> WorkerError | None:
        failed_at: float | None = None
        checked, pause = 0.0, 0.02
        while any(process.exit_code is None for process in self.processes):
            now = time.monotonic()
            if failed_at is None and any(process.exit_code for process in self.processes):
                failed_at = now
            if failed_at is not None and now - failed_at > LOST_RANK_GRACE_S:
                return None
            if now - checked >= 1.0:
                checked = now
                if problem := await run_sync(self._disk):
                    return problem
            notes = _progress_notes(self.job.out)
            if missed := deadlines.missed(now, notes):
                return _problem(missed[0], f"side {self.side.name}: {missed[1]}")
            await self._tell_share(notes)
            await exits.wait(pause)
            pause = min(LOOK_S if exits.all_watched else POLL_S, pause * 1.5)
        return None

    def _disk(self) -> WorkerError | None:
        free = shutil.disk_usage(self.run.path).free
        if free < self.limits.keep_free:
            return _problem(
                "disk_full", f"only {free} bytes are free under {self.run.path}; {self.limits.keep_free} must stay so."
            )
        size = self.run.size()
        if size > self.limits.folder:
            return _problem("disk_limit", f"the run's folder has {size} bytes; the limit is {self.limits.folder}.")
        return None

    async def _tell_share(self, notes: Sequence[RankNote]) -> None:
        if notes:
            slowest = min(notes, key=lambda note: note.share)
            await self.on_share(slowest.share, f"{self.side.name}: {slowest.message}")

    def _tidy(self) -> None:
        for process in self.processes:
            process.close()
        (self.folder / "env.json").unlink(missing_ok=True)
        for path in Path(self.job.out).glob("rank*/reserve"):
            path.unlink(missing_ok=True)
        self.elsewhere.ended(self._mark, well=not any(process.exit_code for process in self.processes))

    def _with_tail(self, problem: WorkerError, left: Sequence[int]) -> WorkerError:
        stuck = f" {len(left)} processes could not be ended: {left[:8]}." if left else ""
        logs = [Path(self.job.out) / rank_name(0) / "log.txt", self._launcher_log(0)]
        tail = next((text for path in logs if (text := tail_of(path))), "")
        return WorkerError(problem.code, problem.message + stuck, tail)


class RankNote(BaseModel):
    """A rank's progress.json. `phase` is 0 while its engine loads."""

    phase: float
    share: Annotated[float, Field(ge=0, le=1)]
    message: str


class Deadlines:
    """When a job must have started (every rank's engine loaded) and when it must be done."""

    def __init__(
        self, timeout_s: float, start_s: float, ranks: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._timeout_s, self._start_s, self._ranks, self._began = timeout_s, start_s, ranks, clock()

    def missed(self, now: float, notes: Sequence[RankNote]) -> tuple[str, str] | None:
        """Code and words of the deadline that is over."""
        if now > self._began + self._timeout_s:
            return "timed_out", f"not done after {self._timeout_s:g} s."
        loaded = sum(note.phase >= 1 for note in notes)
        if now > self._began + self._start_s and loaded < self._ranks:
            return "start_timed_out", f"only {loaded} of {self._ranks} ranks had an engine after {self._start_s:g} s."
        return None


def _progress_notes(out: str) -> list[RankNote]:
    notes = []
    for path in Path(out).glob("rank*/progress.json"):
        with suppress(OSError, ValidationError):
            notes.append(RankNote.model_validate_json(path.read_bytes()))
    return notes


def _problem(code: str, message: str) -> WorkerError:
    return WorkerError(code, f"{message} {advice(code)}")


def _write_private(path: Path, body: Mapping[str, str]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(dict(body), file, allow_nan=False)
