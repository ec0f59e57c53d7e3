"""Where mismatches cluster: phase, batch size and chunk edge of each side, position and sequence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from bitgate.tools.captures.rows import Columns, OpenRows, RowSource, read_column
from bitgate.tools.compare.bins import Bins
from bitgate.tools.compare.log import DISTINCT, DifferenceLog
from bitgate.tools.compare.result import Cluster, Histogram
from numpy.typing import NDArray

PHASES: Final = {0: "prefill", 1: "decode"}
FACET_COLUMNS: Final = frozenset({"phase", "batch", "chunk"})
TALLY_ROWS: Final = 1 << 17

Rows = NDArray[np.int64]


def facets_of(a: RowSource, open_a: OpenRows, b: RowSource, open_b: OpenRows, rows_a: Rows, rows_b: Rows) -> Columns:
    """The facet columns of some rows: `phase:a`, `batch:b`, `chunk_edge:a`, … for the columns that each side holds."""
    found: Columns = {}
    for side, source, opened, rows in (("a", a, open_a, rows_a), ("b", b, open_b, rows_b)):
        for name in ("phase", "batch"):
            if name in source.held:
                found[f"{name}:{side}"] = opened.gather(name, rows)
        if "chunk" in source.held:
            before = np.maximum(rows - 1, 0)
            other = opened.gather("chunk", rows) != opened.gather("chunk", before)
            begins = opened.gather("sequence", rows) != opened.gather("sequence", before)
            found[f"chunk_edge:{side}"] = (other | begins | (rows == 0)).astype(np.uint8)
    return found


@dataclass
class Tally:
    """How many masked rows there are at all, by facet, position and sequence: what mismatch rates divide by."""

    positions: Bins = field(default_factory=Bins)
    sequences: Bins = field(default_factory=Bins)
    facets: dict[str, Counter[int]] = field(default_factory=dict)
    top: dict[int, int] = field(default_factory=dict)


def tally(source: RowSource, side: str, log: DifferenceLog, wanted: set[int]) -> Tally:
    """Count the masked rows of one side; `wanted` are the sequences to count one by one."""
    found = Tally()
    found.positions.reach(max(0, (256 << log.positions.shift) - 1))
    found.sequences.reach(max(0, (256 << log.sequences.shift) - 1))
    with source.open() as opened:
        for start in range(0, source.count, TALLY_ROWS):
            stop = min(start + TALLY_ROWS, source.count)
            mask = read_column(opened, "mask", start, stop) != 0
            if side == "a":
                found.positions.add(np.maximum(read_column(opened, "position", start, stop)[mask], 0))
                sequences = read_column(opened, "sequence", start, stop)[mask]
                found.sequences.add(np.maximum(sequences, 0))
                _count_wanted(found.top, sequences, wanted)
            if source.held & FACET_COLUMNS:
                _count_facets(found, source, opened, np.arange(start, stop)[mask])
    return found


def clusters(log: DifferenceLog, names: tuple[str, str], a: Tally, b: Tally) -> dict[str, tuple[Cluster, ...]]:
    """Clusters by sequence and by each facet, most different rows first."""
    found = {
        "sequence": tuple(Cluster(str(seq), count, a.top.get(seq)) for seq, count in log.top_sequences()),
    }
    for facet, counter in log.facets.items():
        name, side = facet.split(":")
        compared = (a if side == "a" else b).facets.get(name, Counter())
        found[f"{name} of {names[side == 'b']}"] = tuple(
            Cluster(_label(name, value), count, compared.get(value)) for value, count in counter.most_common()
        )
    return found


def histograms(log: DifferenceLog, a: Tally) -> Mapping[str, Histogram]:
    return {
        "position": _histogram(log.positions, a.positions),
        "sequence": _histogram(log.sequences, a.sequences),
    }


def _histogram(different: Bins, compared: Bins) -> Histogram:
    different.reach((256 << compared.shift) - 1)
    compared.reach((256 << different.shift) - 1)
    used = int(np.flatnonzero(compared.counts + different.counts)[-1]) + 1
    return Histogram(
        0,
        1 << compared.shift,
        tuple(different.counts[:used].tolist()),
        tuple(compared.counts[:used].tolist()),
    )


def _label(facet: str, value: int) -> str:
    if facet == "phase":
        return PHASES.get(value, str(value))
    if facet == "chunk_edge":
        return "first row of a chunk" if value else "inside a chunk"
    return str(value)


def _count_facets(found: Tally, source: RowSource, opened: OpenRows, rows: Rows) -> None:
    if not len(rows):
        return
    for name, values in facets_of(source, opened, source, opened, rows, rows[:0]).items():
        if name.endswith(":a"):
            counter = found.facets.setdefault(name.split(":")[0], Counter())
            for value, count in zip(*np.unique(values, return_counts=True), strict=True):
                if len(counter) < DISTINCT or int(value) in counter:
                    counter[int(value)] += int(count)


def _count_wanted(top: dict[int, int], sequences: Rows, wanted: set[int]) -> None:
    """Rows of a sequence lie together, so counting runs is enough."""
    if not len(sequences) or not wanted:
        return
    starts = np.flatnonzero(np.concatenate([[True], sequences[1:] != sequences[:-1]]))
    ids, counts = sequences[starts], np.diff(np.append(starts, len(sequences)))
    for index in np.flatnonzero(np.isin(ids, list(wanted))):
        top[int(ids[index])] = top.get(int(ids[index]), 0) + int(counts[index])
