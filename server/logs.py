"""A run's log as one text: what its supervisor, launchers and ranks wrote, the last part of each, without secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bitgate.server.sanitise import clean_text
from bitgate.tools.redaction import redact_text

TOTAL: Final = 64_000
PATTERNS: Final = ("supervisor.log", "jobs/*/launcher*.log", "jobs/*/out/rank*/log.txt")


def run_log(folder: Path, total: int = TOTAL) -> str:
    """The tails of all log files under a run's folder, at most about `total` characters."""
    files = [path for pattern in PATTERNS for path in sorted(folder.glob(pattern)) if path.is_file()]
    if not files:
        return f"no log in {folder} yet"
    share = max(2000, total // len(files))
    shown = files[: total // share]
    parts = [f"== {path.relative_to(folder)}\n{tail(path, share)}" for path in shown]
    if len(shown) < len(files):
        parts.append(f"== {len(files) - len(shown)} more files in {folder}")
    return "\n".join(parts)


def tail(path: Path, characters: int) -> str:
    """The last part of a file of any size, starting at a line."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 4 * characters))
        text = file.read(4 * characters).decode("utf-8", "replace")
    if len(text) > characters or size > 4 * characters:
        text = f"… ({size} bytes in all, the last part of {path})\n" + text[-characters:].partition("\n")[2]
    return redact_text(clean_text(text)).rstrip()
