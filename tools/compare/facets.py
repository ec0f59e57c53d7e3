"""Where mismatches cluster: phase, batch size and chunk edge of each side, position and sequence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bitgate.tools.captures.rows import Columns, OpenRows, RowSource
from bitgate.tools.compare.bins import BINS, Bins
from bitgate.tools.compare.log import DISTINCT, DifferenceLog
from bitgate.tools.compare.result import Cluster, Histogram

PHASES: Final = {0: "prefill", 1: "decode"}
FACET_COLUMNS: Final = frozenset({"phase", "batch", "chunk"})
TALLY_ROWS: Final = 1 << 16
TALLY_ALL: Final = 1 << 21
"""Captures up to this size are counted in full, larger ones in part: the counts are what mismatch rates divide by."""
DROP_AFTER: Final = 32

Rows = NDArray[np.int64]


def facets_of(a: RowSource, open_a: OpenRows, b: RowSource, open_b: OpenRows, rows_a: Rows, rows_b: Rows) -> Columns:
    """The facet columns of some rows: `phase:a`, `batch:b`, `chunk_edge:a`, … for the columns that each side holds."""
    found = {f"{name}:a": values for name, values in _facets(a, open_a, rows_a).items()}
    return found | {f"{name}:b": values for name, values in _facets(b, open_b, rows_b).items()}


@dataclass
class Tally:
    """Masked rows by facet, position and sequence; counted in one part of the rows out of `sampled`."""

    sampled: int = 1
    positions: Bins = field(default_factory=Bins)
    sequences: Bins = field(default_factory=Bins)
    facets: dict[str, Counter[int]] = field(default_factory=dict)


def tally(source: RowSource, log: DifferenceLog, *, places: bool = True) -> Tally:
    """Count the masked rows of one side; `places`: by position and sequence too, in bins as wide as the log's."""
    found = Tally(sampled=-(-source.count // TALLY_ALL))
    if not places and not source.held & FACET_COLUMNS:
        return found
    found.positions.reach((BINS << log.positions.shift) - 1)
    found.sequences.reach((BINS << log.sequences.shift) - 1)
    first = 0
    with source.open() as opened:
        for count in source.shards:
            for number, start in enumerate(range(first, first + count, TALLY_ROWS * found.sampled)):
                _count(found, source, opened, (start, min(start + TALLY_ROWS, first + count)), places)
                if number % DROP_AFTER == DROP_AFTER - 1:
                    opened.drop()
            first += count
    return found


def clusters(
    log: DifferenceLog, names: tuple[str, str], rows: RowSource, a: Tally, b: Tally
) -> dict[str, tuple[Cluster, ...]]:
    """Clusters by sequence and by each facet, most different rows first."""
    found = {"sequence": _sequences(log, rows)}
    for facet, counter in log.facets.items():
        name, side = facet.split(":")
        tallied = a if side == "a" else b
        compared = tallied.facets.get(name, Counter())
        found[f"{name} of {names[side == 'b']}"] = tuple(
            Cluster(_label(name, value), count, compared[value] * tallied.sampled or None)
            for value, count in counter.most_common()
        )
    return found


def histograms(log: DifferenceLog, a: Tally) -> Mapping[str, Histogram]:
    return {
        "position": _histogram(log.positions, a.positions, a.sampled),
        "sequence": _histogram(log.sequences, a.sequences, a.sampled),
    }


def _facets(source: RowSource, opened: OpenRows, rows: Rows) -> Columns:
    found = {name: opened.gather(name, rows) for name in ("phase", "batch") if name in source.held}
    if "chunk" in source.held:
        before = np.maximum(rows - 1, 0)
        begins = rows == 0
        for name in ("chunk", "sequence"):
            begins = begins | (opened.gather(name, rows) != opened.gather(name, before))
        found["chunk_edge"] = begins.astype(np.uint8)
    return found


def _count(found: Tally, source: RowSource, opened: OpenRows, rows: tuple[int, int], places: bool) -> None:
    start, stop = rows
    under = np.flatnonzero(opened.view("mask", start, stop))
    if not len(under):
        return
    if places:
        found.positions.add(opened.view("position", start, stop)[under])
        found.sequences.add(opened.view("sequence", start, stop)[under])
    if source.held & FACET_COLUMNS:
        for name, values in _facets(source, opened, under + start).items():
            counter = found.facets.setdefault(name, Counter())
            for value, count in zip(*np.unique(values, return_counts=True), strict=True):
                if len(counter) < DISTINCT or int(value) in counter:
                    counter[int(value)] += int(count)


def _sequences(log: DifferenceLog, rows: RowSource) -> tuple[Cluster, ...]:
    with rows.open() as opened:
        return tuple(
            Cluster(str(sequence), count, _masked_around(rows, opened, row))
            for count, sequence, row in log.top_sequences()
        )


def _masked_around(rows: RowSource, opened: OpenRows, row: int) -> int | None:
    """The masked rows of the sequence that `row` belongs to; None where shards may hold more of it."""
    if len(rows.shards) > 1:
        return None
    start, stop, step = row, row + 1, 1 << 10
    sequence = opened.view("sequence", row, row + 1)[0]
    while start > 0 and opened.view("sequence", start - 1, start)[0] == sequence:
        values = opened.view("sequence", max(0, start - step), start)
        start -= _run_length(values[::-1], sequence)
    while stop < rows.count and opened.view("sequence", stop, stop + 1)[0] == sequence:
        stop += _run_length(opened.view("sequence", stop, min(rows.count, stop + step)), sequence)
    return int(np.count_nonzero(opened.view("mask", start, stop)))


def _run_length(values: NDArray[np.int64], value: int) -> int:
    other = np.flatnonzero(values != value)
    return int(other[0]) if len(other) else len(values)


def _histogram(different: Bins, compared: Bins, sampled: int) -> Histogram:
    different.reach((BINS << compared.shift) - 1)
    compared.reach((BINS << different.shift) - 1)
    used = int(np.flatnonzero(compared.counts + different.counts)[-1]) + 1
    return Histogram(
        1 << compared.shift,
        tuple(different.counts[:used].tolist()),
        tuple((compared.counts[:used] * sampled).tolist()),
        sampled,
    )


def _label(facet: str, value: int) -> str:
    if facet == "phase":
        return PHASES.get(value, str(value))
    if facet == "chunk_edge":
        return "first row of a chunk" if value else "inside a chunk"
    return str(value)
