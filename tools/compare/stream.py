"""Two captures whose rows are in the same order, compared chunk by chunk at about the speed of memcmp.

The bytes of each column's chunk are compared in the mapped files, and only one side of an equal chunk is validated,
while it is still in the cache: the cost is one read of every byte. (A file that is cut short while it is compared ends
the process; that run has no verdict.)
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bitgate.tools.captures.problems import Problems
from bitgate.tools.captures.rows import DTYPES, Columns, OpenRows, RowSource
from bitgate.tools.captures.validate import KeyValidator, Limits, ValueValidator
from bitgate.tools.compare.facets import facets_of
from bitgate.tools.compare.rowwise import RowComparer, SideBySide

CHUNK_ROWS: Final = 1 << 16
AHEAD: Final = 2
DROP_AFTER: Final = 32
"""Mapped pages count as resident memory: let go of them every so many chunks."""
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
KEY: Final = ("sequence", "turn", "position")
CHECKED_ALONE: Final = frozenset({"turn", "weight_version"})
COMPARED: Final = (*KEY, "token_id", "weight_version", "mask", "logprob")


@dataclass(frozen=True)
class Checked:
    """What validating one side, or two sides in one order, says: masked rows, groups, and whether keys are unique."""

    masked: int
    groups: int
    ascending: bool


class Chunks:
    """The compared columns of one side, a chunk at a time."""

    def __init__(self, source: RowSource, rows: OpenRows, *, default_turn: bool) -> None:
        self._rows = rows
        self._held = [name for name in COMPARED if name in source.held]
        self._turn = np.zeros(CHUNK_ROWS, DTYPES["turn"]) if default_turn and "turn" not in source.held else None

    def read(self, start: int, stop: int) -> Columns:
        columns = {name: self._rows.view(name, start, stop) for name in self._held}
        if self._turn is not None:
            columns["turn"] = self._turn[: stop - start]
        return columns


def compare_in_order(
    a: RowSource, b: RowSource, limits: tuple[Limits, Limits], comparer: RowComparer, problems: Problems
) -> Checked | None:
    """Compare row i with row i; None as soon as a key differs, and then nothing that was counted holds."""
    default_turn = "turn" in a.held | b.held
    with a.open() as open_a, b.open() as open_b:
        left, right = (Chunks(side, rows, default_turn=default_turn) for side, rows in ((a, open_a), (b, open_b)))
        checks = _Checks(a, b, limits, comparer.names, problems)
        for number, both in enumerate(_ahead(left, right, chunks(a.shards, b.shards))):
            if not both.unequal.isdisjoint(KEY):
                return None
            masked = checks.feed(both)
            if both.unequal:
                chunk = SideBySide(both.a, both.b, both.start, both.start)
                rows = comparer.compare(chunk, both.unequal)
                checks.feed_differing(both, rows)
                if len(rows):
                    facets = facets_of(a, open_a, b, open_b, rows + both.start, rows + both.start)
                    comparer.record(chunk, rows, facets)
            else:
                comparer.equal(both.stop - both.start, masked)
            if number % DROP_AFTER == DROP_AFTER - 1:
                open_a.drop()
                open_b.drop()
    return checks.finish()


@dataclass(frozen=True)
class _Both:
    """One chunk of both sides, and the columns whose bytes differ."""

    start: int
    stop: int
    a: Columns
    b: Columns
    unequal: set[str]


def _ahead(left: Chunks, right: Chunks, ranges: Iterator[tuple[int, int]]) -> Iterator[_Both]:
    """The chunks in order. A helper thread compares the bytes of the next one while this one is looked at: memcmp and
    numpy both let other threads run."""
    with ThreadPoolExecutor(1, "bitgate-memcmp") as helper:
        waiting: deque[Future[_Both]] = deque()
        for start, stop in ranges:
            waiting.append(helper.submit(_both, left, right, start, stop))
            if len(waiting) > AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _both(left: Chunks, right: Chunks, start: int, stop: int) -> _Both:
    a, b = left.read(start, stop), right.read(start, stop)
    unequal = {name for name, column in a.items() if name in b and not same_bytes(column, b[name])}
    return _Both(start, stop, a, b, unequal)


class _Checks:
    """Validation while comparing: side b only where it is not byte for byte side a."""

    def __init__(
        self, a: RowSource, b: RowSource, limits: tuple[Limits, Limits], names: tuple[str, str], problems: Problems
    ) -> None:
        self._edges_a, self._edges_b = _edges(a.shards), _edges(b.shards)
        self._keys = KeyValidator(names[0], problems, limits[0])
        alike = a.shards == b.shards and limits[0] == limits[1] and not (b.held & CHECKED_ALONE) - a.held
        self._keys_b = None if alike else KeyValidator(names[1], problems, limits[1])
        self._values, self._values_b = ValueValidator(names[0], problems), ValueValidator(names[1], problems)

    def feed(self, both: _Both) -> int:
        """Validate a chunk; the result is its masked rows in a."""
        self._keys.feed(both.a, both.start, new_shard=both.start in self._edges_a)
        if self._keys_b is not None:
            self._keys_b.feed(both.b, both.start, new_shard=both.start in self._edges_b)
        before = self._values.masked
        self._values.feed(both.a, both.start, new_shard=both.start in self._edges_a)
        return self._values.masked - before

    def feed_differing(self, both: _Both, rows: NDArray[np.int64]) -> None:
        """Validate what b does not share with a: these rows, or, under another mask, all of them."""
        if "mask" in both.unequal:
            self._values_b.feed(both.b, both.start)
        elif len(rows):
            self._values_b.feed({name: column[rows] for name, column in both.b.items()}, rows + both.start)

    def finish(self) -> Checked:
        self._values.finish()
        self._values_b.finish()
        return Checked(self._values.masked, self._keys.groups, self._keys.ascending)


def validate_rows(name: str, source: RowSource, limits: Limits, problems: Problems) -> Checked:
    """Validate one side by itself."""
    keys, values = KeyValidator(name, problems, limits), ValueValidator(name, problems)
    edges = _edges(source.shards)
    with source.open() as opened:
        reader = Chunks(source, opened, default_turn=False)
        for number, (start, stop) in enumerate(chunks(source.shards, source.shards)):
            columns = reader.read(start, stop)
            keys.feed(columns, start, new_shard=start in edges)
            values.feed(columns, start, new_shard=start in edges)
            if number % DROP_AFTER == DROP_AFTER - 1:
                opened.drop()
    values.finish()
    return Checked(values.masked, keys.groups, keys.ascending)


def chunks(shards_a: tuple[int, ...], shards_b: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Row ranges of at most CHUNK_ROWS that cross no shard's edge of either side."""
    edges = sorted(_edges(shards_a) | _edges(shards_b) | {sum(shards_a)})
    for low, high in zip(edges[:-1], edges[1:], strict=True):
        for start in range(low, high, CHUNK_ROWS):
            yield start, min(start + CHUNK_ROWS, high)


def _edges(shards: tuple[int, ...]) -> frozenset[int]:
    return frozenset([0, *np.cumsum(shards[:-1]).tolist()])


def same_bytes(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """memcmp of two contiguous arrays of one size; about three times as fast as comparing their values."""
    address_a, address_b = a.__array_interface__["data"][0], b.__array_interface__["data"][0]
    return a.nbytes == b.nbytes and _memcmp(address_a, address_b, a.nbytes) == 0
