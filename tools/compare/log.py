"""Everything that is known about the differing rows, gathered a few thousand at a time in bounded memory."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bitgate.tools.compare.bins import Bins
from bitgate.tools.compare.bits import (
    ULP_BUCKETS,
    bucket_label,
    fp32_k3,
    fp32_probability_difference,
    ulp_bucket,
    ulp_distance,
)
from bitgate.tools.compare.moments import Moments
from bitgate.tools.compare.result import Row, Statistics, Summary, Table

FLUSH_ROWS: Final = 1 << 16
TABLE_ROWS: Final = 20_000
WORST: Final = 20
SEQUENCES: Final = 20
DISTINCT: Final = 4096

Differing = Mapping[str, NDArray[Any]]
"""Columns row_a, row_b, sequence, turn, position, token_id, a, b, and facets named `phase:a`, `batch:b`, …"""


@dataclass
class _Totals:
    rows: int = 0
    sign_of_zero: int = 0
    saturated: int = 0
    k3_fp32_zero: int = 0
    ulp_max: int = 0
    fp32_probability_max: float = 0.0
    fp32_k3_sum: float = 0.0


class DifferenceLog:
    """Takes differing rows in any order of sequences, each sequence's rows together."""

    def __init__(self) -> None:
        self.totals = _Totals()
        self.positions, self.sequences = Bins(), Bins()
        self.facets: dict[str, Counter[int]] = {}
        self.sequences_different = 0
        self._waiting: list[Differing] = []
        self._waiting_rows = 0
        self._probability, self._logprob, self._k3 = Moments(), Moments(), Moments()
        self._ulps = np.zeros(ULP_BUCKETS, np.int64)
        self._kept: list[Differing] = []
        self._kept_rows = 0
        self._worst: dict[str, NDArray[Any]] | None = None
        self._first: dict[str, NDArray[Any]] | None = None
        self._open: tuple[int, int, int] | None = None
        self._top: list[tuple[int, int, int]] = []

    def add(self, rows: Differing) -> None:
        self._waiting.append(rows)
        self._waiting_rows += len(rows["a"])
        if self._waiting_rows >= FLUSH_ROWS:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            rows = {name: np.concatenate([part[name] for part in self._waiting]) for name in self._waiting[0]}
            self._waiting, self._waiting_rows = [], 0
            self._take(rows)

    def statistics(self, compared: int) -> Statistics:
        """Over `compared` rows, of which those not logged are equal."""
        self.flush()
        for moments in (self._probability, self._logprob, self._k3):
            moments.add_zeros(compared - moments.count)
        totals = self.totals
        return Statistics(
            _summary(self._probability),
            _summary(self._logprob),
            _summary(self._k3),
            totals.ulp_max,
            {bucket_label(bucket): int(count) for bucket, count in enumerate(self._ulps) if count},
            totals.sign_of_zero,
            totals.saturated,
            totals.k3_fp32_zero,
            totals.fp32_probability_max,
            totals.fp32_k3_sum / compared if compared else 0.0,
        )

    def first(self) -> Row | None:
        self.flush()
        return _rows(self._first)[0] if self._first else None

    def worst(self) -> tuple[Row, ...]:
        self.flush()
        return _rows(self._worst) if self._worst else ()

    def table(self) -> Table | None:
        self.flush()
        if not self._kept:
            return None
        columns = {name: np.concatenate([part[name] for part in self._kept]) for name in self._kept[0]}
        return Table(columns, self.totals.rows - self._kept_rows)

    def top_sequences(self) -> list[tuple[int, int, int]]:
        """(differing rows, sequence, one of these rows in a), most first."""
        self.flush()
        return sorted([*self._top, *([self._open] if self._open is not None else [])], reverse=True)[:SEQUENCES]

    def _take(self, rows: dict[str, NDArray[Any]]) -> None:
        rows["ulp"] = ulp_distance(rows["a"], rows["b"])
        self.totals.rows += len(rows["a"])
        self._measure(rows)
        self.positions.add(rows["position"])
        self.sequences.add(rows["sequence"])
        self._count_sequences(rows["sequence"], rows["row_a"])
        for name in rows:
            if ":" in name:
                self._count_facet(name, rows[name])
        self._keep(rows)

    def _measure(self, rows: Differing) -> None:
        a, b, ulp, totals = rows["a"], rows["b"], rows["ulp"], self.totals
        wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            step = wide_b - wide_a
            self._probability.add(np.abs(np.exp(wide_a) - np.exp(wide_b)))
            self._logprob.add(np.abs(step))
            self._k3.add(np.maximum(np.expm1(step) - step, 0.0))
            narrow, k3 = fp32_probability_difference(a, b), fp32_k3(a, b)
            totals.fp32_k3_sum += float(k3.sum(dtype=np.float64))
        self._ulps += np.bincount(ulp_bucket(ulp), minlength=ULP_BUCKETS)
        totals.ulp_max = max(totals.ulp_max, int(ulp.max()))
        totals.sign_of_zero += int(np.count_nonzero(ulp == 0))
        totals.saturated += int(np.count_nonzero(narrow == 0))
        totals.k3_fp32_zero += int(np.count_nonzero(k3 == 0))
        totals.fp32_probability_max = max(totals.fp32_probability_max, float(narrow.max()))

    def _count_sequences(self, sequences: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        starts = np.flatnonzero(np.concatenate([[True], sequences[1:] != sequences[:-1]]))
        counts, ids = np.diff(np.append(starts, len(sequences))), sequences[starts]
        if self._open is not None and self._open[1] == ids[0]:
            counts[0] += self._open[0]
            self.sequences_different -= 1
        elif self._open is not None:
            self._push(self._open)
        self.sequences_different += len(ids)
        runs = (counts, ids, rows[starts])
        for index in np.argsort(counts[:-1])[-SEQUENCES:]:
            self._push(_run(runs, int(index)))
        self._open = _run(runs, -1)

    def _push(self, run: tuple[int, int, int]) -> None:
        heapq.heappush(self._top, run)
        if len(self._top) > SEQUENCES:
            heapq.heappop(self._top)

    def _count_facet(self, name: str, values: NDArray[Any]) -> None:
        counter = self.facets.setdefault(name, Counter())
        for value, count in zip(*np.unique(values, return_counts=True), strict=True):
            if len(counter) < DISTINCT or int(value) in counter:
                counter[int(value)] += int(count)

    def _keep(self, rows: dict[str, NDArray[Any]]) -> None:
        room = TABLE_ROWS - self._kept_rows
        if room > 0:
            self._kept.append({name: column[:room].copy() for name, column in rows.items()})
            self._kept_rows += min(room, len(rows["a"]))
        self._worst = _best(self._worst, rows, -rows["ulp"], WORST)
        self._first = _best(self._first, rows, rows["row_a"], 1)


def _run(runs: tuple[NDArray[np.int64], ...], index: int) -> tuple[int, int, int]:
    return int(runs[0][index]), int(runs[1][index]), int(runs[2][index])


def _best(
    before: dict[str, NDArray[Any]] | None, rows: dict[str, NDArray[Any]], order: NDArray[np.int64], count: int
) -> dict[str, NDArray[Any]]:
    """The `count` rows that come first by `order`, among those kept before and the new ones."""
    if len(order) > count:
        chosen = np.argpartition(order, count)[:count]
        rows, order = {name: column[chosen] for name, column in rows.items()}, order[chosen]
    kept = {"order": order, **rows}
    if before is not None:
        kept = {name: np.concatenate([before[name], column]) for name, column in kept.items()}
    ranked = np.lexsort((kept["row_a"], kept["order"]))[:count]
    return {name: column[ranked] for name, column in kept.items()}


def _rows(kept: Differing) -> tuple[Row, ...]:
    return tuple(
        Row(
            int(kept["row_a"][index]),
            int(kept["row_b"][index]),
            int(kept["sequence"][index]),
            int(kept["turn"][index]),
            int(kept["position"][index]),
            int(kept["token_id"][index]),
            float(kept["a"][index]),
            float(kept["b"][index]),
            f"0x{int(kept['a'].view(np.uint32)[index]):08x}",
            f"0x{int(kept['b'].view(np.uint32)[index]):08x}",
            int(kept["ulp"][index]),
        )
        for index in range(len(kept["a"]))
    )


def _summary(moments: Moments) -> Summary:
    return Summary(moments.maximum, moments.mean, moments.std)
