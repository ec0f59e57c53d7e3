"""Reading a ledger as a stranger does: read-only, in one transaction, also where nothing at all can be written."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bitgate.store.opening import BUSY_SECONDS

LOG = "-wal"


@contextlib.contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection in one transaction, so that writers may go on meanwhile."""
    with _openable(path) as uri, contextlib.closing(_connected(uri)) as connection:
        connection.execute("PRAGMA cache_size = -65536")  # KiB: each row is looked up in each index
        connection.execute("BEGIN")
        yield connection


def _connected(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)


@contextlib.contextmanager
def _openable(path: Path) -> Iterator[str]:
    """In a folder that this user may not write, SQLite cannot make the memory that readers of a log share.

    Without a log there is nothing to share. With one, of a server that is running or died, and no such memory to join,
    a copy of both is read: rows that are only in the log count too.
    """
    normal = f"{path.resolve().as_uri()}?mode=ro"
    if os.access(path.parent, os.W_OK, effective_ids=os.access in os.supports_effective_ids) or _opens(normal):
        yield normal
        return
    log = path.with_name(path.name + LOG)
    if not log.exists():
        yield f"{path.resolve().as_uri()}?immutable=1"
        return
    with tempfile.TemporaryDirectory(prefix="bitgate-") as folder:
        copy = Path(folder) / path.name
        shutil.copyfile(path, copy)
        shutil.copyfile(log, copy.with_name(copy.name + LOG))
        yield f"{copy.resolve().as_uri()}?mode=ro"


def _opens(uri: str) -> bool:
    try:
        with contextlib.closing(_connected(uri)) as connection:
            connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
    except sqlite3.OperationalError as error:
        return error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
    except sqlite3.DatabaseError:
        return True  # what is wrong with the file is found by whoever reads it
    return True
