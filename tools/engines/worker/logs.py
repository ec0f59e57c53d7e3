"""A log of bounded size: its beginning and its end are kept, what was dropped between them is counted.

`log.txt` holds the first half of the limit; after it `log.txt.1` (newer) and `log.txt.0` (older) take turns. Nothing
is read back or copied while writing, so an engine that prints a gigabyte costs a gigabyte of pipe and no disk.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress

_SECRET_NAME = re.compile(
    r"(SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIAL|COOKIE|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|_KEY$|^KEY$|_AUTH|_PAT$)",
    re.IGNORECASE,
)
_SHORTEST_SECRET = 8
REDACTED = b"[redacted]"


class BoundedLog:
    """Appends bytes to `path`; at most `limit` of them stay. Never raises: an engine must not die of its log."""

    def __init__(self, path: str | os.PathLike[str], limit: int, secrets: Iterable[bytes] = ()) -> None:
        self.path, self.dropped = os.fspath(path), 0
        self._head, self._segment = max(1, limit // 2), max(1, limit // 4)
        self._secrets = sorted(set(secrets), key=len, reverse=True)
        self._held = b""
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - open for the log's whole life
        self._room = self._head - os.fstat(self._file.fileno()).st_size

    def write(self, data: bytes) -> None:
        data = self._held + data
        for secret in self._secrets:
            data = data.replace(secret, REDACTED)
        keep = _possible_start(data, self._secrets)
        self._held = data[len(data) - keep :] if keep else b""
        self._append(data[: len(data) - keep] if keep else data)

    def flush(self) -> None:
        """Write what was held back because a secret might have begun there."""
        held, self._held = self._held, b""
        self._append(held)

    def close(self) -> None:
        self.flush()
        self._file.close()

    def _append(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if self._room <= 0:
                self._rotate()
            part = view[: max(1, self._room)]
            try:
                written = self._file.write(part) or 0
            except OSError:
                self._count(len(view))
                return
            self._room -= written
            view = view[written:]

    def _rotate(self) -> None:
        self._file.close()
        newer, older = f"{self.path}.1", f"{self.path}.0"
        with suppress(OSError):
            lost = os.path.getsize(older)
            os.unlink(older)
            self._count(lost)
        with suppress(OSError):
            os.replace(newer, older)
        try:
            self._file = open(newer, "wb", buffering=0)  # noqa: SIM115
        except OSError:
            self._file = open(os.devnull, "wb", buffering=0)  # noqa: SIM115
        self._room = self._segment

    def _count(self, size: int) -> None:
        self.dropped += size
        with suppress(OSError), open(f"{self.path}.dropped", "w", encoding="ascii") as file:
            file.write(str(self.dropped))


def log_tail(path: str | os.PathLike[str], size: int) -> bytes:
    """The last `size` bytes, of which the first line may be cut; a line says how much is missing before its end."""
    base, tail = os.fspath(path), b""
    for name in (f"{base}.1", f"{base}.0"):
        if len(tail) < size:
            tail = _read(name, last=size - len(tail)) + tail
    return _read(base, last=size - len(tail)) + _missing(base) + tail if len(tail) < size else tail


def is_secret(name: str) -> bool:
    """Whether the value of a variable of this name must not be written down."""
    return bool(_SECRET_NAME.search(name))


def secrets_of(environment: Iterable[tuple[str, str]]) -> list[bytes]:
    """The values that must not be logged: those of secret-looking names, unless too short to be told from words."""
    return [
        os.fsencode(value)
        for name, value in environment
        if _SECRET_NAME.search(name) and len(value) >= _SHORTEST_SECRET and not value.isdigit()
    ]


def without_secrets(text: str, environment: Iterable[tuple[str, str]]) -> str:
    data = text.encode("utf-8", "backslashreplace")
    for secret in secrets_of(environment):
        data = data.replace(secret, REDACTED)
    return data.decode("utf-8", "replace")


def _possible_start(data: bytes, secrets: list[bytes]) -> int:
    """How many bytes at the end of `data` could be the beginning of a secret that the next write completes."""
    longest = 0
    for secret in secrets:
        for size in range(min(len(secret) - 1, len(data)), longest, -1):
            if data.endswith(secret[:size]):
                longest = size
                break
    return longest


def _missing(base: str) -> bytes:
    dropped = _read(f"{base}.dropped").strip()
    return b"\n[... " + dropped + b" bytes dropped here: the log is limited ...]\n" if dropped else b""


def _read(path: str, last: int | None = None) -> bytes:
    try:
        with open(path, "rb") as file:
            if last is not None:
                file.seek(max(0, os.fstat(file.fileno()).st_size - last))
            return file.read()
    except OSError:
        return b""
