"""The four verdicts, run outcomes, and the exit codes that CI gates on (DESIGN section 3)."""

from __future__ import annotations

from typing import Final

from bitgate.store.records import Verdict

EXIT_BY_VERDICT: Final[dict[Verdict, int]] = {"pass": 0, "fail": 10, "invalid": 11, "inconclusive": 12}
EXIT_NO_VERDICT: Final = 13
"""The run crashed, timed out or was cancelled."""
EXIT_GATE_CLOSED: Final = 14
"""A gate is locked, stale or awaits a person."""
EXIT_USAGE: Final = 2
EXIT_INTERNAL: Final = 1
