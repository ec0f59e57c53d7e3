"""Move bytes of tensors between files: in the kernel where it can, hashed on the way, in constant memory."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from blake3 import blake3

from bitgate.tools.slice.header import TensorEntry
from bitgate.tools.slice.layout import Piece

CHUNK: Final = 16 << 20
UNSUPPORTED: Final = frozenset((errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM))

Tick = Callable[[int], None]
"""Called with the bytes just moved; raises to cancel."""


@dataclass
class Mover:
    """One buffer for a whole cut. `in_kernel` turns false when the file systems refuse copy_file_range."""

    tick: Tick
    in_kernel: bool = hasattr(os, "copy_file_range")
    buffer: bytearray = field(default_factory=lambda: bytearray(CHUNK))

    def move(self, piece: Piece, source: int, target: int, at: int) -> str:
        """Copy the piece to `at` and return the BLAKE3 of the bytes as the source has them."""
        hasher = blake3(max_threads=blake3.AUTO)
        if piece.whole:
            for offset, length in _chunks(piece.source):
                view = self._read(source, offset, length)
                hasher.update(view)
                self._write(view, source, offset, target, at)
                at += length
                self.tick(length)
        else:
            self._gather(piece, source, target, at, hasher)
        return hasher.hexdigest()

    def digest(self, file: int, offset: int, size: int) -> str:
        """BLAKE3 of a range of a file."""
        hasher = blake3(max_threads=blake3.AUTO)
        for start in range(0, size, CHUNK):
            hasher.update(self._read(file, offset + start, min(CHUNK, size - start)))
            self.tick(0)
        return hasher.hexdigest()

    def _gather(self, piece: Piece, source: int, target: int, at: int, hasher: blake3) -> None:
        """A part of each row, several rows at a time."""
        step = max(1, CHUNK // max(piece.row_size, 1))
        for first in range(0, piece.rows, step):
            rows = min(step, piece.rows - first)
            for view in self._rows(piece, source, first, rows):
                hasher.update(view)
                at += _write_all(target, view, at)
                self.tick(len(view))

    def _rows(self, piece: Piece, source: int, first: int, rows: int) -> Iterator[memoryview]:
        if piece.row_size > CHUNK:
            yield from self._long_row(piece, source, first)
            return
        start = piece.source.offset + first * piece.row_size
        block = self._read(source, start, rows * piece.row_size)
        parts = (
            block[row * piece.row_size + begin : row * piece.row_size + begin + length]
            for row in range(rows)
            for begin, length in piece.runs
        )
        yield memoryview(b"".join(parts))

    def _long_row(self, piece: Piece, source: int, row: int) -> Iterator[memoryview]:
        for begin, length in piece.runs:
            start = piece.source.offset + row * piece.row_size + begin
            for inner in range(0, length, CHUNK):
                yield self._read(source, start + inner, min(CHUNK, length - inner))

    def _read(self, file: int, offset: int, length: int) -> memoryview:
        view, done = memoryview(self.buffer)[:length], 0
        while done < length:
            got = os.preadv(file, [view[done:]], offset + done)
            if got == 0:
                raise OSError(errno.EIO, f"the file ends at {offset + done}, {length - done} bytes early")
            done += got
        return view

    def _write(self, view: memoryview, source: int, offset: int, target: int, at: int) -> None:
        done = self._copy_in_kernel(source, offset, target, at, len(view)) if self.in_kernel else 0
        if done < len(view):
            _write_all(target, view[done:], at + done)

    def _copy_in_kernel(self, source: int, offset: int, target: int, at: int, length: int) -> int:
        done = 0
        while done < length:
            try:
                moved = os.copy_file_range(source, target, length - done, offset + done, at + done)
            except OSError as error:
                if error.errno not in UNSUPPORTED:
                    raise
                moved = 0
            if moved == 0:
                self.in_kernel = False
                break
            done += moved
        return done


def _chunks(entry: TensorEntry) -> Iterator[tuple[int, int]]:
    for start in range(0, entry.size, CHUNK):
        yield entry.offset + start, min(CHUNK, entry.size - start)


def _write_all(file: int, view: memoryview, at: int) -> int:
    done = 0
    while done < len(view):
        done += os.pwrite(file, view[done:], at + done)
    return done
