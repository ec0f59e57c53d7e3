"""Two captures whose rows are in the same order, compared chunk by chunk at about the speed of memcmp.

A chunk of each column is read into a small buffer of either side and the bytes are compared; only one side of an equal
chunk is validated. A chunk's working set fits a core's L2 cache, and the cost is one read of every byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from bitgate.tools.captures.problems import Problems
from bitgate.tools.captures.rows import DTYPES, Columns, OpenRows, RowSource
from bitgate.tools.captures.validate import KeyValidator, Limits, ValueValidator
from bitgate.tools.compare.facets import facets_of
from bitgate.tools.compare.rowwise import RowComparer, SideBySide

CHUNK_ROWS: Final = 1 << 14
KEY: Final = ("sequence", "turn", "position")
CHECKED_ALONE: Final = frozenset({"turn", "weight_version"})
COMPARED: Final = (*KEY, "token_id", "weight_version", "mask", "logprob")


@dataclass(frozen=True)
class Checked:
    """What validating one side, or two sides in one order, says: masked rows, groups, and whether keys are unique."""

    masked: int
    groups: int
    ascending: bool


class ChunkBuffers:
    """One reusable buffer per column, read as bytes and seen as an array."""

    def __init__(self, source: RowSource, rows: OpenRows, *, default_turn: bool) -> None:
        self._rows = rows
        self._held = [name for name in COMPARED if name in source.held]
        self._bytes = {name: bytearray(CHUNK_ROWS * DTYPES[name].itemsize) for name in self._held}
        if default_turn and "turn" not in source.held:
            self._bytes["turn"] = bytearray(CHUNK_ROWS * DTYPES["turn"].itemsize)
        self._arrays = {name: np.frombuffer(data, DTYPES[name]) for name, data in self._bytes.items()}

    def read(self, name: str, start: int, stop: int) -> None:
        if name in self._held:
            size = (stop - start) * DTYPES[name].itemsize
            self._rows.read_into(name, start, stop, memoryview(self._bytes[name])[:size])

    def same(self, other: ChunkBuffers, name: str, count: int) -> bool:
        """Whether both sides hold the same bytes; bytearray == bytes-like is a memcmp."""
        size = count * DTYPES[name].itemsize
        if size == len(self._bytes[name]):
            return self._bytes[name] == other._bytes[name]
        return self._bytes[name][:size] == memoryview(other._bytes[name])[:size]

    def columns(self, count: int) -> Columns:
        return {name: array[:count] for name, array in self._arrays.items()}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._bytes)


def compare_in_order(
    a: RowSource, b: RowSource, limits: tuple[Limits, Limits], comparer: RowComparer, problems: Problems
) -> Checked | None:
    """Compare row i with row i; None as soon as a key differs, and then nothing that was counted holds."""
    keys = KeyValidator(comparer.names[0], problems, limits[0])
    alike = a.shards == b.shards and limits[0] == limits[1] and not (b.held & CHECKED_ALONE) - a.held
    keys_b = None if alike else KeyValidator(comparer.names[1], problems, limits[1])
    values_a, values_b = (ValueValidator(name, problems) for name in comparer.names)
    default_turn = "turn" in a.held | b.held
    shards_b = set(np.cumsum(b.shards).tolist())
    with a.open() as open_a, b.open() as open_b:
        left = ChunkBuffers(a, open_a, default_turn=default_turn)
        right = ChunkBuffers(b, open_b, default_turn=default_turn)
        shared = [name for name in COMPARED if name in left.names & right.names]
        for start, stop, new_shard in chunks(a.shards, b.shards):
            count = stop - start
            unequal = _unequal(left, right, shared, start, stop)
            if not unequal.isdisjoint(KEY):
                return None
            columns_a, columns_b = left.columns(count), right.columns(count)
            keys.feed(columns_a, start, new_shard=new_shard and start in _edges(a.shards))
            if keys_b is not None:
                keys_b.feed(columns_b, start, new_shard=start == 0 or start in shards_b)
            before = values_a.masked
            values_a.feed(columns_a, start)
            if not unequal:
                comparer.equal(count, values_a.masked - before)
                continue
            if not unequal.isdisjoint(("mask", "logprob")):
                values_b.feed(columns_b, start)
            rows = np.arange(start, stop, dtype=np.int64)
            chunk = SideBySide(columns_a, columns_b, rows, rows)
            differing = comparer.compare(chunk)
            if len(differing):
                comparer.record(chunk, differing, facets_of(a, open_a, b, open_b, rows[differing], rows[differing]))
    values_a.finish()
    values_b.finish()
    return Checked(values_a.masked, keys.groups, keys.ascending)


def validate_rows(name: str, source: RowSource, limits: Limits, problems: Problems) -> Checked:
    """Validate one side by itself."""
    keys, values = KeyValidator(name, problems, limits), ValueValidator(name, problems)
    edges = _edges(source.shards)
    with source.open() as opened:
        buffers = ChunkBuffers(source, opened, default_turn=False)
        for start, stop, _ in chunks(source.shards, source.shards):
            for column in COMPARED:
                buffers.read(column, start, stop)
            columns = buffers.columns(stop - start)
            keys.feed(columns, start, new_shard=start in edges)
            values.feed(columns, start)
    values.finish()
    return Checked(values.masked, keys.groups, keys.ascending)


def chunks(shards_a: tuple[int, ...], shards_b: tuple[int, ...]) -> Iterator[tuple[int, int, bool]]:
    """(start, stop, starts at an edge): ranges of at most CHUNK_ROWS that cross no shard's edge of either side."""
    edges = sorted(_edges(shards_a) | _edges(shards_b) | {sum(shards_a)})
    for low, high in zip(edges[:-1], edges[1:], strict=True):
        for start in range(low, high, CHUNK_ROWS):
            yield start, min(start + CHUNK_ROWS, high), start == low


def _edges(shards: tuple[int, ...]) -> frozenset[int]:
    return frozenset([0, *np.cumsum(shards[:-1]).tolist()])


def _unequal(left: ChunkBuffers, right: ChunkBuffers, shared: list[str], start: int, stop: int) -> set[str]:
    found: set[str] = set()
    for name in COMPARED:
        left.read(name, start, stop)
        right.read(name, start, stop)
        if name in shared and not left.same(right, name, stop - start):
            found.add(name)
    return found
