"""What a tool is given when it runs: progress, jobs on sides, artifacts. Nothing of the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pydantic import JsonValue

from bitgate.tools.engines.jobs import Job
from bitgate.tools.runs.results import JobResult

if TYPE_CHECKING:
    from bitgate.store.artifacts import ArtifactStore
    from bitgate.tools.config.project import Project
    from bitgate.tools.runs.launchers import Launches


class SideToRun(Protocol):
    """The part of a configured side that starting it needs."""

    @property
    def name(self) -> str: ...
    @property
    def engine(self) -> str: ...
    @property
    def python(self) -> str | None: ...
    @property
    def launcher(self) -> Launches: ...
    @property
    def env(self) -> Mapping[str, str]: ...
    @property
    def options(self) -> Mapping[str, JsonValue]: ...


class RunContext(Protocol):
    """Given to `tool.run`. One unit of `progress`'s total is one job: a running job moves the bar inside its unit."""

    run_id: str
    folder: Path
    project: Project
    artifacts: ArtifactStore
    known: Mapping[str, JsonValue]
    """What the tool must know of the ledger, as values (tools/ab/known.py); empty when nobody said anything."""

    async def progress(self, done: float, total: float | None, message: str) -> None:
        """Says how far the run is; at most five updates a second are written, the last one always."""
        ...

    async def run_job(self, side: SideToRun, job: Job, *, timeout_s: float) -> JobResult:
        """Starts `side`'s launcher on `job`, watches it to its end, and leaves nothing of it running.

        Raises:
            WorkerError: the job ended without every rank's result; `code` is a row of the run error table.
            VerdictError: it ended, but what it left cannot be compared (`rank_missing`).
        """
        ...

    def new_job(self, side: SideToRun) -> Path:
        """The folder of this run's next job, `jobs/<n>-<side>`, made and empty; put sequences.safetensors there."""
        ...
