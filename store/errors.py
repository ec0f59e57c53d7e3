"""What can go wrong in the store, each with a `code` that callers and people can act on."""

from __future__ import annotations

import contextlib
import errno
import sqlite3
from collections.abc import Iterator
from pathlib import Path


class StoreError(Exception):
    """Any refusal or failure of the store. `code` is stable; the message says what to do."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class NotFound(StoreError):
    """A run, a piece of evidence, an artifact or a ledger that is not there."""


class Refused(StoreError):
    """What was asked would break a rule of the ledger. Nothing was written."""


class Unavailable(StoreError):
    """The machine stands in the way: a lock, a full disk, permissions, the file system. Nothing was written."""


class Damaged(StoreError):
    """The file is not a ledger this version can read and trust."""


# Primary SQLite result code -> (class, our code, what to do). https://www.sqlite.org/rescode.html
_SQLITE: dict[int, tuple[type[StoreError], str, str]] = {
    sqlite3.SQLITE_BUSY: (
        Unavailable,
        "ledger_locked",
        "another process held the write lock for 30 s; look for one that hangs, then try again",
    ),
    sqlite3.SQLITE_LOCKED: (Unavailable, "ledger_locked", "another statement holds the table; try again"),
    sqlite3.SQLITE_FULL: (Unavailable, "disk_full", "the disk is full; free some space, then try again"),
    sqlite3.SQLITE_IOERR: (
        Unavailable,
        "ledger_io",
        "the file system failed (full disk, quota, file-size limit or a broken device); see the kernel log",
    ),
    sqlite3.SQLITE_READONLY: (
        Unavailable,
        "ledger_read_only",
        "this user may not write the ledger or its folder; fix the permissions or use `bitgate serve --http`",
    ),
    sqlite3.SQLITE_PERM: (Unavailable, "ledger_read_only", "this user may not write the ledger; fix the permissions"),
    sqlite3.SQLITE_CANTOPEN: (
        Unavailable,
        "ledger_unopenable",
        "the ledger or its folder cannot be opened for writing; check that the folder exists and may be written",
    ),
    sqlite3.SQLITE_CORRUPT: (
        Damaged,
        "ledger_corrupt",
        "the file is damaged; restore it from a backup and run `bitgate verify --head` with the last known head",
    ),
    sqlite3.SQLITE_NOTADB: (
        Damaged,
        "not_a_ledger",
        "the file is not an SQLite database; name another path or move the file away",
    ),
    sqlite3.SQLITE_CONSTRAINT: (Refused, "ledger_rule", "the ledger is append-only and each row follows the last"),
    sqlite3.SQLITE_TOOBIG: (Refused, "body_too_large", "store the bytes as an artifact and name its digest"),
}
_OS: dict[int, tuple[str, str]] = {
    errno.ENOSPC: ("disk_full", "the disk is full; free some space, then try again"),
    errno.EDQUOT: ("disk_full", "the quota is used up; free some space, then try again"),
    errno.EFBIG: ("disk_full", "the file-size limit of this process is reached; raise `ulimit -f`"),
    errno.EACCES: ("store_read_only", "this user may not write there; fix the permissions"),
    errno.EPERM: ("store_read_only", "this user may not write there; fix the permissions"),
    errno.EROFS: ("store_read_only", "the file system is mounted read-only; use another path"),
}


def from_sqlite(error: sqlite3.Error, path: Path) -> StoreError:
    primary = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    kind, code, hint = _SQLITE.get(primary, (StoreError, "ledger_error", "this is a defect of bitgate; report it"))
    return kind(code, f"{path}: {error}; {hint}")


def from_os(error: OSError, path: Path) -> StoreError:
    code, hint = _OS.get(error.errno or 0, ("store_io", "the file system refused"))
    return Unavailable(code, f"{path}: {error.strerror or error}; {hint}")


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn what SQLite and the system raise about `path` into a StoreError."""
    try:
        yield
    except sqlite3.Error as error:
        raise from_sqlite(error, path) from error
    except OSError as error:
        raise from_os(error, path) from error
