"""The errors that bitgate raises on purpose. Each carries a stable `code`, and words its reader can act on."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class BitgateError(Exception):
    """Base of all of them; `str(error)` is safe to show to a client."""

    code: str = "error"


class RequestError(BitgateError):
    """A request that cannot be run as it stands: which field, what came, what is allowed, what to do."""

    code = "bad_request"

    def __init__(self, field: str, given: object, allowed: str, hint: str = "") -> None:
        self.field, self.given, self.allowed, self.hint = field, given, allowed, hint
        super().__init__(f"{shorten(field)}: got {shown(given)}; allowed: {allowed}." + (f" {hint}" if hint else ""))


class ConfigError(BitgateError):
    """The configuration cannot be used; the text names the file and the key."""

    code = "bad_config"


class WorkerError(BitgateError):
    """A side's job ended without a result."""

    def __init__(self, code: str, message: str, log_tail: str = "") -> None:
        self.code, self.message, self.log_tail = code, message, log_tail
        super().__init__(message + (f"\nlast log lines:\n{log_tail}" if log_tail else ""))

    @property
    def unsupported(self) -> bool:
        """Whether a worker said 'this cannot be done here', as opposed to something having gone wrong."""
        return self.code.startswith("unsupported_") or self.code == "operator_without_entry"


class VerdictError(BitgateError):
    """What a job left behind decides the verdict by itself; `code` is a row of bitgate.tools.reasons."""

    def __init__(self, code: str, detail: str) -> None:
        self.code, self.detail = code, detail
        super().__init__(detail)


def shown(value: object, limit: int = 200) -> str:
    """`repr`, cut, so that a hostile or huge value cannot drown the message."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def shorten(name: str, limit: int = 200) -> str:
    return name if len(name) <= limit else f"{name[:limit]}…"


def nearest(word: str, known: Iterable[str]) -> str:
    """'Did you mean …?' for a misspelt name, or an empty string."""
    match = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"Did you mean {match[0]!r}?" if match else ""


def unknown_name(field: str, given: str, known: Iterable[str], hint: str = "") -> RequestError:
    """The request error for a name that does not exist, with the nearest one that does."""
    names = sorted(known)
    listed = ", ".join(names[:20]) + (f" … ({len(names)} in all)" if len(names) > 20 else "")
    return RequestError(
        field, given, listed or "none is defined", " ".join(filter(None, [nearest(given, names), hint]))
    )
