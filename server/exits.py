"""Exit codes of the command line (DESIGN section 3), from answers and errors."""

from __future__ import annotations

from typing import Final

from bitgate.server.answers import RunAnswer
from bitgate.store.errors import StoreError
from bitgate.tools.errors import BitgateError, ConfigError, RequestError
from bitgate.tools.verdicts import EXIT_BY_VERDICT, EXIT_INTERNAL, EXIT_NO_VERDICT, EXIT_USAGE

EXIT_INTERRUPTED: Final = 130


def exit_for(error: BitgateError | StoreError) -> int:
    """2 for what the caller, or another role, can put right by asking differently, 1 for the rest."""
    if isinstance(error, RequestError | ConfigError):
        return EXIT_USAGE
    code = getattr(error, "code", "")
    return EXIT_USAGE if code.startswith("unknown_") or code.endswith("_refused") else EXIT_INTERNAL


def exit_of(answer: RunAnswer) -> int:
    return EXIT_BY_VERDICT[answer.verdict] if answer.verdict else EXIT_NO_VERDICT
