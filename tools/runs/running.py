"""The run context that the supervisor hands to a tool."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue

from bitgate.tools.engines.jobs import Job
from bitgate.tools.runs.context import SideToRun
from bitgate.tools.runs.elsewhere import Elsewhere
from bitgate.tools.runs.folder import ProgressNote, RunFolder
from bitgate.tools.runs.job import JobRun
from bitgate.tools.runs.limits import RunLimits
from bitgate.tools.runs.results import JobResult

if TYPE_CHECKING:
    from bitgate.store.artifacts import ArtifactStore
    from bitgate.tools.config.project import Project

INTERVAL_S = 0.2


class SupervisedRun:
    """A RunContext (context.py) whose jobs are real."""

    def __init__(
        self,
        run_id: str,
        folder: RunFolder,
        project: Project,
        artifacts: ArtifactStore,
        limits: RunLimits,
        elsewhere: Elsewhere,
        known: Mapping[str, JsonValue] | None = None,
    ) -> None:
        self.known: Mapping[str, JsonValue] = known or {}
        self.run_id, self.folder, self.project, self.artifacts = run_id, folder.path, project, artifacts
        self._files, self._limits, self._elsewhere = folder, limits, elsewhere
        self._note = ProgressNote(done=0.0, total=None, message="starting")
        self._written: ProgressNote | None = None
        self._written_at = float("-inf")

    async def progress(self, done: float, total: float | None, message: str) -> None:
        self._note = ProgressNote(done=done, total=total, message=message[:500])
        self._write(self._note, always=True)

    def new_job(self, side: SideToRun) -> Path:
        return self._files.new_job(side.name)

    async def run_job(self, side: SideToRun, job: Job, *, timeout_s: float) -> JobResult:
        folder = Path(job.out).parent
        if folder.parent != self._files.jobs:
            raise ValueError(f"job.out: got {job.out}; allowed: a folder inside one that new_job made")
        run = JobRun(self._files, self.run_id, folder, side, job, self._limits, self._elsewhere, self._teller())
        return await run.to_end(timeout_s)

    def _teller(self) -> Callable[[float, str], Awaitable[None]]:
        base = self._note

        async def tell(share: float, message: str) -> None:
            # Two jobs at once move the same unit; the bar never goes back.
            done = max(base.done + share, self._note.done) if base.total is not None else base.done
            self._note = ProgressNote(done=done, total=base.total, message=message[:500])
            self._write(self._note, always=False)

        return tell

    def _write(self, note: ProgressNote, *, always: bool) -> None:
        now = time.monotonic()
        if always or (note != self._written and now - self._written_at >= INTERVAL_S):
            self._written, self._written_at = note, now
            self._files.write_progress(note)
