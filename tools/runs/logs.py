"""A run's log as one text: what its supervisor, launchers and ranks wrote, the last part of each, without secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bitgate.tools.engines.worker.logs import log_tail
from bitgate.tools.runs.tails import plain_text

PATTERNS: Final = ("supervisor.log", "jobs/*/launcher*.log", "jobs/*/out/rank*/log.txt")
CHARACTERS: Final = 64_000
LEAST: Final = 2_000
"""Characters of a file below which it is not worth showing: of very many ranks only the first are."""


def run_log(folder: Path, characters: int = CHARACTERS) -> str:
    """The tails of all log files under a run's folder, at most about `characters` in all."""
    files = [path for pattern in PATTERNS for path in sorted(folder.glob(pattern)) if path.is_file()]
    if not files:
        return f"no log in {folder} yet"
    share = max(LEAST, characters // len(files))
    shown = files[: max(1, characters // share)]
    parts = [f"== {path.relative_to(folder)}\n{_tail(path, share)}" for path in shown]
    if len(shown) < len(files):
        parts.append(f"== {len(files) - len(shown)} more files in {folder}")
    return "\n".join(parts)


def _tail(path: Path, characters: int) -> str:
    data = log_tail(path, 4 * characters + 1)
    text = plain_text(data)
    if len(data) <= 4 * characters and len(text) <= characters:
        return text.rstrip()
    kept = text[-characters:]
    whole_lines = kept.partition("\n")[2] or kept
    return f"… (the last part of {path})\n{whole_lines}".rstrip()
