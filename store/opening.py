"""Opening the ledger's file: connections with the right pragmas, one a thread, and the check of what the file is."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

from bitgate.store.errors import Damaged, Unavailable, from_sqlite, translated
from bitgate.store.filesystem import refuse_network
from bitgate.store.kinds import KINDS
from bitgate.store.schema import APPLICATION_ID, SCHEMA_VERSION, object_problems

BUSY_SECONDS = 30.0
_OLDEST_SQLITE = (3, 38, 0)  # STRICT tables need 3.37, the ->> operator 3.38
_PRAGMAS = (
    "foreign_keys = ON",
    "recursive_triggers = ON",  # otherwise REPLACE slips past the delete trigger
    "synchronous = FULL",  # a row that was reported written, and perhaps pinned, survives a power cut
    "cell_size_check = ON",
)


class Connections:
    """One connection a thread and process: SQLite's do not survive a fork, and threads would share transactions."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._local = threading.local()
        self._all: weakref.WeakSet[_Held] = weakref.WeakSet()
        self._inherited: list[_Held] = []  # a parent's, kept alive: SQLite forbids even closing them in the child
        self._closed = False

    def get(self) -> sqlite3.Connection:
        held: _Held | None = getattr(self._local, "held", None)
        if held is not None and held.pid != os.getpid():
            self._inherited.append(held)
            held = None
        return (held or self._open()).connection

    def _open(self) -> _Held:
        if self._closed:
            raise Unavailable("store_closed", f"{self.path}: this store was closed; open it again with Store.open")
        with translated(self.path):
            held = _Held(connect(self.path))
        self._local.held = held
        self._all.add(held)
        return held

    def close(self) -> None:
        self._closed = True
        for held in list(self._all):
            if held.pid == os.getpid():
                held.connection.close()
        self._local = threading.local()


class _Held:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.pid = os.getpid()


def connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def immediate(connection: sqlite3.Connection, path: Path) -> Iterator[None]:
    """A write transaction that holds the lock from its first read on. Inside another one it is a savepoint.

    Raises: StoreError; whatever is raised inside rolls everything back.
    """
    nested = connection.in_transaction
    begin, commit, undo = _SAVEPOINT if nested else _TRANSACTION
    try:
        connection.execute(begin)
        yield
        connection.execute(commit)
    except BaseException as error:
        if connection.in_transaction:  # a full disk may have ended it already
            for statement in undo:
                connection.execute(statement)
        if isinstance(error, sqlite3.Error):
            raise from_sqlite(error, path) from error
        raise


_TRANSACTION = ("BEGIN IMMEDIATE", "COMMIT", ("ROLLBACK",))
_SAVEPOINT = ("SAVEPOINT inner", "RELEASE inner", ("ROLLBACK TO inner", "RELEASE inner"))


def prepare(path: Path) -> Connections:
    """Make or check the ledger at `path`, and migrate it to this version's schema."""
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise Unavailable(
            "sqlite_too_old",
            f"this Python links SQLite {sqlite3.sqlite_version}; 3.38 or later is needed: use another Python build",
        )
    refuse_network(path)
    if path.is_dir():
        raise Damaged("not_a_ledger", f"{path}: this is a folder; name the ledger's file, such as {path / 'ledger.db'}")
    with translated(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    connections = Connections(path)
    try:
        _prepare(connections.get(), path)
    except BaseException:
        connections.close()
        raise
    return connections


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    with translated(path):
        version = _version(connection, path)
        _enable_wal(connection)
        if version == SCHEMA_VERSION:
            _require_guards(connection, path)
        else:
            _migrate(connection, path)
        _add_new_kinds(connection, path)


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """The file's schema version; 0 for a new file. Raises: Damaged for another program's file, or a later version's."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application != APPLICATION_ID and connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone():
        raise Damaged("not_a_ledger", f"{path}: a database of another program; name another path or move the file away")
    if version > SCHEMA_VERSION:
        raise Damaged(
            "ledger_too_new",
            f"{path}: has schema version {version}, this bitgate knows up to {SCHEMA_VERSION}: upgrade bitgate",
        )
    return version


def _require_guards(connection: sqlite3.Connection, path: Path) -> None:
    if problems := object_problems(connection):
        raise Damaged(
            "ledger_damaged",
            f"{path}: {'; '.join(problems)}: somebody changed the file by hand; "
            "run `bitgate verify`, then restore it from a copy that verifies",
        )


def _enable_wal(connection: sqlite3.Connection) -> None:
    """SQLite reports a lock at once here, without the busy timeout, when two processes make the same file."""
    waiting = threading.Event()
    for attempt in range(200):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or attempt == 199:
                raise
            waiting.wait(0.05)


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    # Imported here: sqlite-utils brings its command line along, and a ledger that is up to date does not need it.
    from bitgate.store.migrations import migrate

    with immediate(connection, path):
        if _version(connection, path) != SCHEMA_VERSION:
            migrate(connection)


def _add_new_kinds(connection: sqlite3.Connection, path: Path) -> None:
    known = {name for (name,) in connection.execute("SELECT kind FROM kinds")}
    if known >= KINDS.keys():
        return
    with immediate(connection, path):
        connection.executemany(
            "INSERT OR IGNORE INTO kinds (kind, subject, meaning) VALUES (?, ?, ?)",
            [(kind.name, kind.subject, kind.meaning) for kind in KINDS.values()],
        )
