"""Rows as columns that are read a chunk at a time, from files or from memory, never all at once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from bitgate.tools.captures.errors import CaptureError
from bitgate.tools.captures.safetensors_layout import Layout, open_regular, stamp_of
from numpy.typing import NDArray

REQUIRED: Final[Mapping[str, str]] = {
    "sequence": "int64", "position": "int64", "token_id": "int64", "mask": "uint8", "logprob": "float32",
}  # fmt: skip
OPTIONAL: Final[Mapping[str, str]] = {
    "turn": "int32", "weight_version": "int64", "phase": "uint8", "chunk": "int32", "batch": "int32",
}  # fmt: skip
DTYPES: Final[Mapping[str, np.dtype[Any]]] = {name: np.dtype(dtype) for name, dtype in {**REQUIRED, **OPTIONAL}.items()}

DROP_AFTER: Final = 512
"""Mapped pages count as resident memory; forgetting the mapping every so many gathers bounds it."""

Columns = dict[str, NDArray[Any]]


class OpenRows(Protocol):
    """Rows while they are open."""

    def read_into(self, column: str, start: int, stop: int, target: memoryview) -> None:
        """Fill `target` with the bytes of rows start..stop of a column that the source holds."""

    def gather(self, column: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """The values of a column at any rows."""

    def holds(self, column: str) -> bool: ...

    def drop(self) -> None:
        """Forget what `gather` mapped, so that the pages it touched no longer count as this process's memory."""


def read_column(opened: OpenRows, column: str, start: int, stop: int) -> NDArray[Any]:
    """Rows start..stop of a column, as a new array."""
    values = np.empty(stop - start, DTYPES[column])
    opened.read_into(column, start, stop, values.data.cast("B"))
    return values


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

    def read_into(self, column: str, start: int, stop: int, target: memoryview) -> None:
        target[:] = np.ascontiguousarray(self.columns[column][start:stop]).data.cast("B")

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
            descriptors = []
            for layout in self.layouts:
                descriptors.append(open_regular(layout.path))
                stack.callback(os.close, descriptors[-1])
                if stamp_of(descriptors[-1]) != layout.stamp:
                    raise CaptureError("capture_changed", f"{layout.path} is not the file that was opened before")
            opened = _OpenFiles(self.layouts, descriptors)
            stack.callback(opened.drop)
            yield opened


class _OpenFiles:
    def __init__(self, layouts: Sequence[Layout], descriptors: Sequence[int]) -> None:
        self._layouts, self._descriptors = layouts, descriptors
        counts = [layout.tensors["sequence"].shape[0] for layout in layouts]
        self._starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._maps: dict[int, np.memmap[Any, Any]] = {}
        self._gathers = 0

    def read_into(self, column: str, start: int, stop: int, target: memoryview) -> None:
        if len(self._layouts) == 1:
            return self._pread(0, column, start, stop, target)
        width, done = DTYPES[column].itemsize, 0
        for shard in range(int(np.searchsorted(self._starts, start, "right")) - 1, len(self._layouts)):
            first, end = int(self._starts[shard]), int(self._starts[shard + 1])
            low, high = max(start, first), min(stop, end)
            if low < high:
                self._pread(shard, column, low - first, high - first, target[done : done + (high - low) * width])
                done += (high - low) * width
            if end >= stop:
                return None
        return None

    def gather(self, column: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        self._gathers += 1
        if self._gathers % DROP_AFTER == 0:
            self.drop()
        found = np.empty(len(rows), DTYPES[column])
        shard_of = np.searchsorted(self._starts, rows, "right") - 1
        for shard in np.unique(shard_of):
            chosen = shard_of == shard
            found[chosen] = self._mapped(int(shard), column)[rows[chosen] - self._starts[shard]]
        return found

    def holds(self, column: str) -> bool:
        return column in self._layouts[0].tensors

    def drop(self) -> None:
        self._maps.clear()

    def _pread(self, shard: int, column: str, start: int, stop: int, target: memoryview) -> None:
        width, stored = DTYPES[column].itemsize, self._layouts[shard].tensors[column]
        wanted, offset, done = (stop - start) * width, stored.offset + start * width, 0
        while done < wanted:
            got = os.preadv(self._descriptors[shard], [target[done:wanted]], offset + done)
            if got == 0:
                raise CaptureError("capture_truncated", f"{self._layouts[shard].path} became shorter while it was read")
            done += got

    def _mapped(self, shard: int, column: str) -> NDArray[Any]:
        layout = self._layouts[shard]
        if shard not in self._maps:
            with open(self._descriptors[shard], "rb", closefd=False) as file:
                self._maps[shard] = np.memmap(file, np.uint8, "r")
        stored = layout.tensors[column]
        size = stored.shape[0] * DTYPES[column].itemsize
        return self._maps[shard][stored.offset : stored.offset + size].view(np.ndarray).view(DTYPES[column])
