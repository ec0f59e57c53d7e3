"""BLAKE3 of many files: on every core, and only of those that changed since they were last hashed."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from blake3 import blake3

from bitgate.tools.provenance import digesting
from bitgate.tools.provenance.digesting import RECORD, Key, Row, digests, fill, key_of, reason_of, taken, unpacked

HELPER_FROM: Final = 2000
"""Files from which other processes are worth their start: opening a file costs more than hashing it, and holds the
interpreter."""
AT_ONCE: Final = 4096
"""Digests that are kept in one transaction: while files are still hashed, and no other server waits long."""
SETTLED_NS: Final = 1_000_000_000
"""A digest of a file that was written less than this before it was read is not kept: clocks of file systems tick, and
within one tick it may be written again under the same key."""
LIST_NAME: Final = "hashes.db"
TEXT: Final = (".py", ".pyi", ".h", ".hpp", ".cuh", ".txt", ".json", ".md")
"""Files that are rarely large. They come last, so that no core is left with a large one at the end."""
_BEGIN: Final[Mapping[str, Callable[[bytes | memoryview], Any]]] = {"blake3": blake3, "sha256": hashlib.sha256}


@dataclass(frozen=True)
class Hashed:
    """Digests in hex by path; `unreadable`: path -> why; `read`: how many files were really read."""

    digests: dict[str, str]
    unreadable: dict[str, str]
    read: int


class HashCache:
    """Digests by file key in one SQLite file. Losing it costs time, nothing else: it is no part of the ledger.

    A key stays as long as nobody wrote to the file: writing moves ctime, which no program can set back. It is taken
    from the descriptor that is read, before and after, so that it is the key of the very bytes.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path

    def blake3(self, paths: Iterable[str]) -> Hashed:
        return self._digests(list(dict.fromkeys(paths)), "blake3")

    def sha256(self, paths: Iterable[str]) -> Hashed:
        """What a wheel's RECORD holds."""
        return self._digests(list(dict.fromkeys(paths)), "sha256")

    def _digests(self, paths: Sequence[str], kind: str) -> Hashed:
        settled = time.time_ns() - SETTLED_NS
        with closing(self._open()) as connection:
            known, unreadable = _known(connection, kind, paths)
            rows = hash_all([path for path in paths if path not in known and path not in unreadable], kind)
            fresh: dict[str, str] = {}
            while part := list(islice(rows, AT_ONCE)):
                _remember(connection, kind, ((key, digest) for _, key, digest in part if key and key[4] < settled))
                fresh |= {path: digest for path, key, digest in part if key}
                unreadable |= {path: why for path, key, why in part if not key}
        return Hashed(known | fresh, unreadable, len(fresh))

    def _open(self) -> sqlite3.Connection:
        try:
            return self._prepared()
        except sqlite3.DatabaseError:
            self._path.unlink(missing_ok=True)
            return self._prepared()

    def _prepared(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=30)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS hashes (device INTEGER, inode INTEGER, size INTEGER, mtime_ns INTEGER, "
            "ctime_ns INTEGER, kind TEXT, digest TEXT NOT NULL, "
            "PRIMARY KEY (device, inode, kind)) WITHOUT ROWID, STRICT"
        )
        return connection


def _known(connection: sqlite3.Connection, kind: str, paths: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Digests of the paths that are as they were, and those that cannot be looked at."""
    rows = connection.execute(
        "SELECT device, inode, size, mtime_ns, ctime_ns, digest FROM hashes WHERE kind = ?", (kind,)
    )
    held = {row[:5]: row[5] for row in rows}
    known: dict[str, str] = {}
    unreadable: dict[str, str] = {}
    for path in paths if held else ():
        try:
            digest = held.get(key_of(os.stat(path)))
        except (OSError, ValueError) as error:
            unreadable[path] = reason_of(error)
            continue
        if digest is not None:
            known[path] = digest
    return known, unreadable


def _remember(connection: sqlite3.Connection, kind: str, rows: Iterable[tuple[Key, str]]) -> None:
    with connection:
        connection.executemany(
            "INSERT OR REPLACE INTO hashes VALUES (?, ?, ?, ?, ?, ?, ?)",
            sorted((*key, kind, digest) for key, digest in rows),
        )


def hash_all(paths: Sequence[str], kind: str = "blake3") -> Iterator[tuple[str, Key | None, str]]:
    """(path, key, hex digest) of every file, or (path, None, why) of one that cannot be read or changed meanwhile."""
    ordered = sorted((path for path in paths if "\0" not in path), key=lambda path: path.endswith(TEXT))
    if len(ordered) < len(paths):
        yield from ((path, None, "embedded null byte") for path in paths if "\0" in path)
    together = os.fsencode("\0".join(ordered))
    rows = _by_threads if len(ordered) < HELPER_FROM else _by_helpers
    for number, key, text in rows(together, together.split(b"\0") if ordered else [], kind):
        yield ordered[number], key, text


def _by_threads(_: bytes, paths: Sequence[bytes], kind: str) -> Iterator[Row]:
    """Both hashes let go of the interpreter, so threads are enough for few files."""
    cores = _cores()
    with tempfile.TemporaryFile() as tickets, ThreadPoolExecutor(cores) as pool:
        fill(tickets.fileno(), len(paths))
        shares = pool.map(
            lambda _: list(digests(paths, taken(tickets.fileno(), len(paths)), _BEGIN[kind])), range(cores)
        )
        for share in shares:
            yield from share


def _by_helpers(together: bytes, paths: Sequence[bytes], kind: str) -> Iterator[Row]:
    """Rows as the helpers write them. What they did not deliver is read here: it shows why, or a helper was ended."""
    lacking = set(range(len(paths)))
    for records in _written(together, len(paths), kind):
        for row in unpacked(records):
            lacking.discard(row[0])
            yield row
    yield from digests(paths, sorted(lacking), _BEGIN[kind])


def _written(paths: bytes, count: int, kind: str) -> Iterator[bytes]:
    """Whole records of all helpers, one process a core, through one pipe."""
    with ExitStack() as stack:
        tickets = stack.enter_context(tempfile.TemporaryFile()).fileno()
        fill(tickets, count)
        source = stack.enter_context(tempfile.TemporaryFile())
        source.write(paths)
        source.flush()
        reading, writing = os.pipe()
        # -I -S: neither the user's site nor a .pth runs, which would cost more than the hashing.
        command = [sys.executable, "-I", "-S", digesting.__file__, kind, str(tickets), _folder_of_blake3()]
        try:
            for _ in range(_cores()):
                helper = subprocess.Popen(
                    command, stdin=source, stdout=writing, stderr=subprocess.DEVNULL, pass_fds=[tickets]
                )
                stack.enter_context(helper)
        finally:
            os.close(writing)
            # Closed before the helpers are waited for: one that still writes then ends.
            output = stack.enter_context(open(reading, "rb"))
        while records := output.read(RECORD.size * 512):
            yield records[: len(records) // RECORD.size * RECORD.size]


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _folder_of_blake3() -> str:
    return str(Path(str(sys.modules["blake3"].__file__)).parents[1])
