"""Digests of files by their descriptors: the innermost loop, run by bitgate and by its helper processes alike.

Run by path it is a helper: `digesting.py KIND TICKETS FOLDER_OF_BLAKE3`, paths on its input, records on its output. It
needs the standard library and blake3 alone, so that a helper starts in a few milliseconds.
"""

from __future__ import annotations

import os
import stat
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    # Importing typing takes a helper longer than everything else that it imports.
    from typing import Any, Final

BUFFER: Final = 1 << 18
"""Bytes of one read: what is read is hashed while it still lies in the core's second-level cache."""
BATCH: Final = 8
"""Files that a process takes at a time."""
CHANGED: Final = "it changed while it was read"
_TICKET: Final = 4
RECORD: Final = struct.Struct("<IQQQqq32s")
"""Number of a path, its key, and the digest; both hashes have 32 bytes."""

Key = tuple[int, int, int, int, int]
"""Device, inode, size, mtime_ns, ctime_ns."""
Row = tuple[int, "Key | None", str]
"""Number of a path, and its key and hex digest; or None and why there is no digest."""


def key_of(seen: os.stat_result) -> Key:
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns


def digests(paths: Sequence[bytes], numbers: Iterable[int], make: Callable[[bytes | memoryview], Any]) -> Iterator[Row]:
    """One row a number, in their order; `make` begins a hash with the first bytes."""
    view = memoryview(bytearray(BUFFER))
    for number in numbers:
        try:
            # Without O_NONBLOCK a pipe that somebody put there would never open.
            file = os.open(paths[number], os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            yield number, None, reason_of(error)
            continue
        try:
            yield number, *_digest(file, make, view)
        except OSError as error:
            yield number, None, reason_of(error)
        finally:
            os.close(file)


def _digest(file: int, make: Callable[[bytes | memoryview], Any], view: memoryview) -> tuple[Key | None, str]:
    before = os.fstat(file)
    if not stat.S_ISREG(before.st_mode):
        return None, "Is a directory" if stat.S_ISDIR(before.st_mode) else "it is no regular file"
    # Most files take one read, of a byte more than there should be: to read such a one into `view` takes longer.
    if before.st_size < BUFFER and len(data := os.read(file, before.st_size + 1)) == before.st_size:
        found = make(data)
    else:
        found = _hashed(file, make, view)
    key = key_of(os.fstat(file))
    return (key, found.hexdigest()) if key == key_of(before) else (None, CHANGED)


def _hashed(file: int, make: Callable[[bytes | memoryview], Any], view: memoryview) -> Any:
    """To the very end: a file system may return less than it was asked for."""
    os.lseek(file, 0, os.SEEK_SET)
    found = make(b"")
    while count := os.readv(file, [view]):
        found.update(view[:count])
    return found


def reason_of(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def fill(tickets: int, count: int) -> None:
    """Makes the file `tickets` a queue of `count` numbers, which `taken` hands out."""
    batches = range(0, count, BATCH)
    with open(tickets, "wb", closefd=False) as file:
        file.write(b"".join(first.to_bytes(_TICKET, "little") for first in batches))
    os.lseek(tickets, 0, os.SEEK_SET)


def taken(tickets: int, count: int) -> Iterator[int]:
    """Numbers below `count` that nobody else took.

    An open file has one position for all who inherited it, and the kernel moves it for one reader at a time: whoever
    is slow takes less, and nobody waits for anybody.
    """
    while ticket := os.read(tickets, _TICKET):
        first = int.from_bytes(ticket, "little")
        yield from range(first, min(first + BATCH, count))


def packed(rows: Iterable[Row]) -> bytes:
    """Records of those that have a digest."""
    return b"".join(RECORD.pack(number, *key, bytes.fromhex(digest)) for number, key, digest in rows if key)


def unpacked(records: bytes) -> Iterator[Row]:
    for number, *key, digest in RECORD.iter_unpack(records):
        yield number, (key[0], key[1], key[2], key[3], key[4]), digest.hex()


def main(kind: str, tickets: str, folder: str) -> None:
    """Several helpers write into one pipe: a batch at a time, which the kernel keeps whole (PIPE_BUF).

    A file without a digest is left out: whoever started the helpers reads it again and says what is wrong with it.
    """
    sys.path.append(folder)
    module = "blake3" if kind == "blake3" else "hashlib"
    make: Callable[[bytes | memoryview], Any] = getattr(__import__(module), kind)
    # Their input is one file, whose position they share.
    paths = os.pread(0, os.fstat(0).st_size, 0).split(b"\0")
    rows: list[Row] = []
    for row in digests(paths, taken(int(tickets), len(paths)), make):
        rows.append(row)
        if len(rows) == BATCH:
            os.write(1, packed(rows))
            rows.clear()
    os.write(1, packed(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
