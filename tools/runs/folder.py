"""The folder of a run: which file is where. The only place that knows the names."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from bitgate.tools.engines.worker.files import write_json


class StartedRun(BaseModel):
    """request.json: all that the supervisor is told."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run_id: str
    tool: str
    request: dict[str, JsonValue]
    project: str
    actor: str
    known: dict[str, JsonValue] = {}
    """What the tool must know of the ledger, as values, from whoever started the run."""


class ProgressNote(BaseModel):
    """progress.json of a run."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    done: float
    total: float | None
    message: str


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run; the folder may be shared between hosts."""

    path: Path

    @property
    def request(self) -> Path:
        return self.path / "request.json"

    @property
    def lease(self) -> Path:
        return self.path / "lease"

    @property
    def cancel(self) -> Path:
        return self.path / "cancel"

    @property
    def progress(self) -> Path:
        return self.path / "progress.json"

    @property
    def log(self) -> Path:
        return self.path / "supervisor.log"

    @property
    def stage(self) -> Path:
        return self.path / "stage"

    @property
    def jobs(self) -> Path:
        return self.path / "jobs"

    @property
    def reserve(self) -> Path:
        return self.path / "reserve"

    def create(self, run: StartedRun) -> None:
        """Makes the folder with its request and a first lease; nobody else may read it."""
        self.path.mkdir(parents=True, mode=0o700)
        write_json(self.request, run.model_dump(mode="json"))
        self.lease.write_text("0 starting\n", encoding="ascii")

    def started(self) -> StartedRun:
        return StartedRun.model_validate_json(self.request.read_bytes())

    def write_progress(self, note: ProgressNote) -> None:
        write_json(self.progress, note.model_dump(mode="json"), durable=False)

    def read_progress(self) -> ProgressNote | None:
        return read_note(self.progress)

    def new_job(self, side: str) -> Path:
        """`jobs/<n>-<side>`, the next number."""
        self.jobs.mkdir(exist_ok=True)
        number = sum(1 for _ in self.jobs.iterdir())
        folder = self.jobs / f"{number}-{side}"
        folder.mkdir()
        return folder

    def size(self) -> int:
        """Bytes that the folder takes on the disk."""
        return sum(_sizes(self.path))


def read_note(path: Path) -> ProgressNote | None:
    try:
        return ProgressNote.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def read_object(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None where there is none."""
    try:
        body = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def _sizes(folder: str | Path) -> Iterator[int]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                yield from _sizes(entry.path)
            else:
                yield entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:
            continue
