"""Rows as columns that are read a chunk at a time, from files or from memory, never all at once."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from bitgate.tools.captures.errors import CaptureError
from bitgate.tools.captures.safetensors_layout import Layout, open_regular, stamp_of

REQUIRED: Final[Mapping[str, str]] = {
    "sequence": "int64", "position": "int64", "token_id": "int64", "mask": "uint8", "logprob": "float32",
}  # fmt: skip
OPTIONAL: Final[Mapping[str, str]] = {
    "turn": "int32", "weight_version": "int64", "phase": "uint8", "chunk": "int32", "batch": "int32",
}  # fmt: skip
DTYPES: Final[Mapping[str, np.dtype[Any]]] = {name: np.dtype(dtype) for name, dtype in {**REQUIRED, **OPTIONAL}.items()}

Columns = dict[str, NDArray[Any]]


class OpenRows(Protocol):
    """Rows while they are open."""

    def view(self, column: str, start: int, stop: int) -> NDArray[Any]:
        """Rows start..stop of a column, which must lie in one shard: a view where possible, not to be written to."""

    def gather(self, column: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """The values of a column at any rows, as a new array."""

    def holds(self, column: str) -> bool: ...

    def drop(self) -> None:
        """Let go of the memory that reading has mapped; views stay valid and are read again when they are used."""


def read_column(opened: OpenRows, column: str, start: int, stop: int) -> NDArray[Any]:
    """Rows start..stop of a column, of any shards, as a new array."""
    return opened.gather(column, np.arange(start, stop, dtype=np.int64))


class RowSource(Protocol):
    """Where rows come from. `held` are the columns present; `shards` the row counts of its shards, in order."""

    @property
    def count(self) -> int: ...
    @property
    def held(self) -> frozenset[str]: ...
    @property
    def shards(self) -> tuple[int, ...]: ...
    def open(self) -> AbstractContextManager[OpenRows]: ...


@dataclass(frozen=True)
class ArrayRows:
    """Rows in memory: one contiguous array per column."""

    columns: Mapping[str, NDArray[Any]]

    @property
    def count(self) -> int:
        return len(self.columns["sequence"])

    @property
    def held(self) -> frozenset[str]:
        return frozenset(self.columns)

    @property
    def shards(self) -> tuple[int, ...]:
        return (self.count,)

    @contextmanager
    def open(self) -> Iterator[OpenRows]:
        yield _OpenArrays(self.columns)


@dataclass(frozen=True)
class _OpenArrays:
    columns: Mapping[str, NDArray[Any]]

    def view(self, column: str, start: int, stop: int) -> NDArray[Any]:
        return self.columns[column][start:stop]

    def gather(self, column: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        return self.columns[column][rows]

    def holds(self, column: str) -> bool:
        return column in self.columns

    def drop(self) -> None:
        pass


@dataclass(frozen=True)
class FileRows:
    """Rows of one capture on disk: the shards' files, one after the other."""

    layouts: tuple[Layout, ...]

    @property
    def count(self) -> int:
        return sum(self.shards)

    @property
    def held(self) -> frozenset[str]:
        return frozenset(self.layouts[0].tensors)

    @property
    def shards(self) -> tuple[int, ...]:
        return tuple(layout.tensors["sequence"].shape[0] for layout in self.layouts)

    @contextmanager
    def open(self) -> Iterator[OpenRows]:
        with ExitStack() as stack:
            maps = [_map(layout, stack) for layout in self.layouts]
            yield _OpenFiles(self.layouts, maps)
            for layout in self.layouts:
                _refuse_changed(layout, os.stat(layout.path))


def _map(layout: Layout, stack: ExitStack) -> mmap.mmap:
    descriptor = open_regular(layout.path)
    stack.callback(os.close, descriptor)
    _refuse_changed(layout, os.fstat(descriptor))
    return mmap.mmap(descriptor, layout.stamp.size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)


def _refuse_changed(layout: Layout, seen: os.stat_result) -> None:
    if stamp_of(seen) != layout.stamp:
        raise CaptureError("capture_changed", f"{layout.path} is not the file that was opened before")


class _OpenFiles:
    """Columns of mapped files. Mapping costs no copy, which is what lets a comparison run at the speed of memory."""

    def __init__(self, layouts: Sequence[Layout], maps: Sequence[mmap.mmap]) -> None:
        counts = [layout.tensors["sequence"].shape[0] for layout in layouts]
        self._starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._maps = maps
        self._columns = [
            {
                name: np.ndarray(stored.shape, DTYPES[name], buffer=memory, offset=stored.offset)
                for name, stored in layout.tensors.items()
            }
            for layout, memory in zip(layouts, maps, strict=True)
        ]

    def view(self, column: str, start: int, stop: int) -> NDArray[Any]:
        shard = self._shard(start)
        first = int(self._starts[shard])
        return self._columns[shard][column][start - first : stop - first]

    def gather(self, column: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        if len(self._columns) == 1:
            return self._columns[0][column][rows]
        found = np.empty(len(rows), DTYPES[column])
        shard_of = np.searchsorted(self._starts, rows, "right") - 1
        for shard in np.unique(shard_of):
            chosen = shard_of == shard
            found[chosen] = self._columns[int(shard)][column][rows[chosen] - self._starts[shard]]
        return found

    def holds(self, column: str) -> bool:
        return column in self._columns[0]

    def drop(self) -> None:
        for memory in self._maps:
            memory.madvise(mmap.MADV_DONTNEED)

    def _shard(self, row: int) -> int:
        return 0 if len(self._columns) == 1 else int(np.searchsorted(self._starts, row, "right")) - 1
