"""Captures that somebody handed in for a check inside one side: did they vary what the check holds equal?

Two captures of decode alone agree about nothing but decode, whatever the check is called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from bitgate.store.records import Coverage, Reason
from bitgate.tools.captures.read import Capture
from bitgate.tools.reasons import reason

BLOCK_ROWS: Final = 1 << 20
AXES_KEY: Final = "axes"
"""In a capture's provenance: the axes that its writer exercised and no column shows, such as graphs."""
COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {
    "phase": {"phase": "decode", "chunk": "chunked_prefill"},
    "batch": {"batch": "batching"},
    "layout": {"batch": "micro_batch", "chunk": "packing"},
}
"""Check -> column -> the axis that is exercised when the column differs between a view and the reference."""
LEAST: Final[Mapping[str, int]] = {"phase": 0, "chunk": 0, "batch": 1}
MOST: Final[Mapping[str, int]] = {"phase": 1}


@dataclass(frozen=True)
class Facts:
    """What a capture says about how its rows were computed: column -> value -> masked rows, axes, parallel layout."""

    columns: Mapping[str, Counter[int]]
    axes: frozenset[str]
    parallel: frozenset[tuple[str, int]]


@dataclass(frozen=True)
class Varied:
    coverage: Coverage
    reasons: tuple[Reason, ...]


def varied(check: str, reference: Capture, views: Mapping[str, Capture]) -> Varied:
    """Which axes the views exercise against the reference; a view that varies nothing makes the check inconclusive."""
    if check not in COLUMNS:
        return Varied(Coverage(), ())
    base, reasons = _facts(check, reference)
    exercised: set[str] = set()
    for name, view in views.items():
        facts, wrong = _facts(check, view)
        reasons += wrong
        found = _axes(check, base, facts)
        exercised |= found
        if not found:
            reasons.append(reason("axis_not_exercised", _nothing_varied(check, reference.name, name)))
    return Varied(Coverage(exercised=tuple(sorted(exercised))), tuple(reasons))


def _axes(check: str, base: Facts, view: Facts) -> set[str]:
    found = {axis for column, axis in COLUMNS[check].items() if base.columns.get(column) != view.columns.get(column)}
    if check == "layout":
        found |= {axis for axis, _ in base.parallel ^ view.parallel}
    return found | (base.axes ^ view.axes)


def _nothing_varied(check: str, reference: str, view: str) -> str:
    columns = " or ".join(COLUMNS[check])
    also = ", the parallel layout" if check == "layout" else ""
    return (
        f"{view}: nothing recorded shows that it varied what check={check} holds equal; column {columns}{also} and "
        f"provenance.{AXES_KEY} are as in {reference}"
    )


def _facts(check: str, capture: Capture) -> tuple[Facts, list[Reason]]:
    columns = {name: _counted(capture, name) for name in COLUMNS[check] if name in capture.rows.held}
    wrong = [reason_ for name, counts in columns.items() for reason_ in _out_of_range(capture.name, name, counts)]
    stated = [meta.provenance.get(AXES_KEY) for meta in capture.metas]
    axes = frozenset(axis for names in stated if isinstance(names, list) for axis in names if isinstance(axis, str))
    parallel = frozenset(item for meta in capture.metas for item in meta.parallel.items())
    return Facts(columns, axes, parallel), wrong


def _counted(capture: Capture, column: str) -> Counter[int]:
    counts: Counter[int] = Counter()
    first = 0
    with capture.rows.open() as opened:
        for rows in capture.rows.shards:
            for start in range(first, first + rows, BLOCK_ROWS):
                stop = min(start + BLOCK_ROWS, first + rows)
                under = opened.view("mask", start, stop) != 0
                values, found = np.unique(opened.view(column, start, stop)[under], return_counts=True)
                counts.update(dict(zip(values.tolist(), found.tolist(), strict=True)))
                opened.drop()
            first += rows
    return counts


def _out_of_range(capture: str, column: str, counts: Counter[int]) -> list[Reason]:
    least, most = LEAST[column], MOST.get(column)
    bad = sorted(value for value in counts if value < least or (most is not None and value > most))
    if not bad:
        return []
    allowed = f"{least} or more" if most is None else f"{least} to {most}"
    rows = sum(counts[value] for value in bad)
    return [reason("value_out_of_range", f"{capture}: {column} {bad[0]} in {rows} rows; allowed: {allowed}")]
