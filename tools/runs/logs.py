"""A run's log as one text, read piece by piece: what its supervisor, launchers and ranks wrote, without secrets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bitgate.tools.engines.worker.logs import read_log
from bitgate.tools.runs.control import run_folder
from bitgate.tools.runs.tails import plain_text

if TYPE_CHECKING:
    from bitgate.tools.config.project import Project

PATTERNS: Final = ("supervisor.log", "jobs/*/launcher*.log", "jobs/*/out/rank*/log.txt")


@dataclass(frozen=True)
class LogPage:
    """Characters `offset` to `next_offset` of `size`; `more` says whether any follow."""

    text: str
    offset: int
    next_offset: int
    size: int

    @property
    def more(self) -> bool:
        return self.next_offset < self.size


def run_log(project: Project, run_id: str, offset: int = 0, limit: int = 16_000) -> LogPage:
    """A part of the log; a negative `offset` counts from its end. Offsets are stable once the run has ended."""
    text = whole_log(run_folder(project, run_id).path)
    start = max(0, len(text) + offset) if offset < 0 else min(offset, len(text))
    end = min(len(text), start + max(0, limit))
    return LogPage(text[start:end], start, end, len(text))


def whole_log(folder: Path) -> str:
    """Every log file of a run, each under its name; bounded because each of them is."""
    files = [path for pattern in PATTERNS for path in sorted(folder.glob(pattern))]
    return "\n".join(f"== {path.relative_to(folder)}\n{plain_text(read_log(path))}" for path in files)
