"""BLAKE3 of many files: in parallel, and only of those that changed since they were last hashed.

Small files go to helper processes: opening them costs more than hashing, and holds the interpreter.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from blake3 import blake3

LARGE: Final = 64 << 20
"""From this size a file is hashed by several threads, where there are more than two cores."""
HELPER_FROM: Final = 2000
"""Files from which another process is worth its start."""
LIST_NAME: Final = "hashes.db"


class FileKey(NamedTuple):
    """What stays the same as long as nobody wrote to a file: writing moves ctime, which no program can set back."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> FileKey:
        """Raises: OSError."""
        seen = os.stat(path)
        return cls(seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)


@dataclass(frozen=True)
class Hashed:
    """Digests in hex by path; `unreadable`: path -> why; `read`: how many files were really read."""

    digests: dict[str, str]
    unreadable: dict[str, str]
    read: int


class HashCache:
    """Digests by file key in one SQLite file. Losing it costs time, nothing else: it is no part of the ledger."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path

    def blake3(self, paths: Iterable[str]) -> Hashed:
        return self._digests(list(dict.fromkeys(paths)), "blake3")

    def sha256(self, paths: Iterable[str]) -> Hashed:
        """What a wheel's RECORD holds."""
        return self._digests(list(dict.fromkeys(paths)), "sha256")

    def _digests(self, paths: Sequence[str], kind: str) -> Hashed:
        keys, unreadable = _keys(paths)
        with closing(self._open()) as connection:
            known = dict(_known(connection, kind, keys))
            wanted = [path for path in keys if path not in known]
            made = dict(hash_all(wanted, keys, kind))
            fresh = {path: digest for path, digest in made.items() if not digest.startswith("!")}
            _remember(connection, kind, keys, fresh)
        unreadable |= {path: digest[1:] for path, digest in made.items() if digest.startswith("!")}
        return Hashed({**known, **fresh}, unreadable, len(fresh))

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


def _keys(paths: Iterable[str]) -> tuple[dict[str, FileKey], dict[str, str]]:
    keys: dict[str, FileKey] = {}
    unreadable: dict[str, str] = {}
    for path in paths:
        try:
            keys[path] = FileKey.of(path)
        except (OSError, ValueError) as error:
            unreadable[path] = getattr(error, "strerror", None) or str(error)
    return keys, unreadable


def _known(connection: sqlite3.Connection, kind: str, keys: dict[str, FileKey]) -> Iterator[tuple[str, str]]:
    rows = connection.execute(
        "SELECT device, inode, size, mtime_ns, ctime_ns, digest FROM hashes WHERE kind = ?", (kind,)
    )
    held = {row[:5]: row[5] for row in rows}
    return ((path, held[key]) for path, key in keys.items() if key in held)


def _remember(connection: sqlite3.Connection, kind: str, keys: dict[str, FileKey], digests: dict[str, str]) -> None:
    rows = ((*keys[path], kind, digest) for path, digest in digests.items())
    with connection:
        connection.executemany("INSERT OR REPLACE INTO hashes VALUES (?, ?, ?, ?, ?, ?, ?)", rows)


def hash_all(paths: Sequence[str], keys: Mapping[str, FileKey], kind: str = "blake3") -> Iterator[tuple[str, str]]:
    """(path, hex digest) of every file, or (path, "!why") of one that cannot be read or changed meanwhile."""
    cores = len(os.sched_getaffinity(0))
    if kind == "sha256" or len(paths) < HELPER_FROM or cores < 2:
        # Both hashes let go of the interpreter, so threads are enough for few files.
        with ThreadPoolExecutor(cores) as pool:
            yield from zip(paths, pool.map(lambda path: digest_of(path, keys[path], kind), paths), strict=True)
        return
    large = [path for path in paths if keys[path].size >= LARGE and cores > 2]
    apart = frozenset(large)
    helpers = _start_helpers([path for path in paths if path not in apart], keys, cores)
    yield from ((path, digest_of(path, keys[path], kind, threaded=True)) for path in large)
    for share, process in helpers:
        yield from _collected(share, keys, process)


Helper = tuple[list[str], "subprocess.Popen[bytes]"]


def _start_helpers(paths: Sequence[str], keys: Mapping[str, FileKey], cores: int) -> list[Helper]:
    """One process a core, each with every n-th file by size, so that all have as much to do."""
    ordered = sorted(paths, key=lambda path: -keys[path].size)
    return [(share, _start(share)) for number in range(cores) if (share := ordered[number::cores])]


def _start(share: list[str]) -> subprocess.Popen[bytes]:
    # -I -S: neither the user's site nor a .pth runs, which would cost more than the hashing.
    program = f"import sys; sys.path[:0] = {[os.path.dirname(os.path.dirname(_blake3_file()))]!r}\n{_HELPER}"
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write(b"\0".join(map(os.fsencode, share)))
    process.stdin.close()
    return process


def _blake3_file() -> str:
    return str(sys.modules["blake3"].__file__)


_HELPER: Final = """
import os
from blake3 import blake3
out, buffer = [], bytearray(1 << 20)
view = memoryview(buffer)
for path in sys.stdin.buffer.read().split(b"\\0"):
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = blake3()
            # A short read of a regular file is its end: most files take one call.
            while (count := os.readv(fd, [buffer])) == len(buffer):
                found.update(buffer)
            found.update(view[:count])
            out.append(f"{os.fstat(fd).st_ctime_ns} {found.hexdigest()}")
        finally:
            os.close(fd)
    except OSError as error:
        out.append(f"0 !{error.strerror}")
sys.stdout.write(chr(10).join(out))
"""


def _collected(
    share: list[str], keys: Mapping[str, FileKey], process: subprocess.Popen[bytes]
) -> Iterator[tuple[str, str]]:
    assert process.stdout is not None
    with process.stdout:
        lines = process.stdout.read().decode("utf-8", "replace").splitlines()
    if process.wait() != 0 or len(lines) != len(share):
        # A helper that died must not become files without a digest.
        yield from ((path, digest_of(path, keys[path], "blake3")) for path in share)
        return
    for path, line in zip(share, lines, strict=True):
        changed, _, digest = line.partition(" ")
        yield path, digest if digest.startswith("!") or int(changed) == keys[path].ctime_ns else _CHANGED


_CHANGED: Final = "!it changed while it was read"


class _Hash(Protocol):
    def update(self, data: memoryview, /) -> object: ...
    def hexdigest(self) -> str: ...


def _read_through(path: str, found: _Hash) -> str:
    buffer = memoryview(bytearray(1 << 20))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            found.update(buffer[:count])
    return found.hexdigest()


def digest_of(path: str, key: FileKey, kind: str, *, threaded: bool = False) -> str:
    """The hex digest, or "!why"."""
    try:
        if threaded:
            digest = blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()
        else:
            digest = _read_through(path, blake3() if kind == "blake3" else hashlib.sha256())
        return digest if FileKey.of(path) == key else _CHANGED
    except OSError as error:
        return f"!{error.strerror or type(error).__name__}"
