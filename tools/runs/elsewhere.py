"""Ranks that no signal of ours reaches: what ends them (scancel, docker kill, ray job stop), while their job runs.

The lease ends those that these commands miss.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

TIMEOUT_S: Final = 15.0

Commands = Sequence[Sequence[str]]


class Elsewhere:
    """The stop commands of the jobs that run now, by the job's mark. Any thread may use it."""

    def __init__(self) -> None:
        self._jobs: dict[str, tuple[Commands, dict[str, str]]] = {}

    def started(self, mark: str, commands: Commands, env: Mapping[str, str]) -> None:
        if commands:
            self._jobs[mark] = (commands, dict(env))

    def ended(self, mark: str, *, well: bool) -> None:
        """A job that ended well has nothing left to stop."""
        commands, env = self._jobs.pop(mark, ((), {}))
        for argv in () if well else commands:
            with suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(
                    argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False
                )

    def stop_all(self) -> None:
        for mark in list(self._jobs):
            self.ended(mark, well=False)
