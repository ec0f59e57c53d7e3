"""The groups of a capture: runs of rows with one sequence number, found without holding the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bitgate.tools.captures.rows import OpenRows, RowSource

SCAN_ROWS: Final = 1 << 17
DROP_AFTER: Final = 64
MAX_GROUPS: Final = 4_000_000
"""Groups held at once; a capture with more is looked at in several passes, each over a part of the sequences."""
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Groups:
    """Sorted by (sequence, first row): a sequence has several groups when shards split it, or when it is repeated."""

    sequence: Ints
    start: Ints
    length: Ints

    def of(self, low: int, high: int) -> Groups:
        """The groups of sequences low..high, both included."""
        begin, end = np.searchsorted(self.sequence, low, "left"), np.searchsorted(self.sequence, high, "right")
        return Groups(self.sequence[begin:end], self.start[begin:end], self.length[begin:end])

    def rows(self) -> Ints:
        """All their row indices, group after group."""
        if not len(self.length):
            return np.empty(0, np.int64)
        ends = np.cumsum(self.length)
        steps = np.arange(int(ends[-1]), dtype=np.int64)
        rows: Ints = steps + np.repeat(self.start - (ends - self.length), self.length)
        return rows

    def split(self) -> Groups:
        """Only those of sequences that have more than one group."""
        twice = self.sequence[1:] == self.sequence[:-1]
        chosen = np.concatenate([twice, [False]]) | np.concatenate([[False], twice])
        return Groups(self.sequence[chosen], self.start[chosen], self.length[chosen]) if len(self.sequence) else self


def find_groups(source: RowSource, opened: OpenRows, part: int = 0, parts: int = 1) -> Groups:
    """The groups of the sequences that fall into `part` of `parts`."""
    found: list[tuple[Ints, Ints, Ints]] = []
    first = 0
    for count in source.shards:
        open_at, open_sequence = -1, -1
        for number, start in enumerate(range(first, first + count, SCAN_ROWS)):
            if number % DROP_AFTER == DROP_AFTER - 1:
                opened.drop()
            values = opened.view("sequence", start, min(start + SCAN_ROWS, first + count))
            begins = np.flatnonzero(values[1:] != values[:-1]) + 1
            if open_at < 0 or values[0] != open_sequence:
                begins = np.concatenate([[0], begins])
            if len(begins):
                ids, starts = values[begins], begins + start
                if open_at >= 0:
                    ids, starts = np.concatenate([[open_sequence], ids]), np.concatenate([[open_at], starts])
                found.append(_part((ids[:-1], starts[:-1], np.diff(starts)), part, parts))
                open_at, open_sequence = int(starts[-1]), int(ids[-1])
        last = np.array([open_sequence]), np.array([open_at]), np.array([first + count - open_at])
        found.append(_part(last, part, parts))
        first += count
    sequence, start_rows, length = (np.concatenate([item[axis] for item in found]) for axis in range(3))
    order = np.lexsort((start_rows, sequence))
    return Groups(sequence[order], start_rows[order], length[order])


def _part(groups: tuple[Ints, Ints, Ints], part: int, parts: int) -> tuple[Ints, Ints, Ints]:
    if parts == 1:
        return groups
    mixed = np.ascontiguousarray(groups[0]).view(np.uint64) * _MIX >> np.uint64(40)
    chosen = mixed % np.uint64(parts) == np.uint64(part)
    return groups[0][chosen], groups[1][chosen], groups[2][chosen]
