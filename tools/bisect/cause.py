"""The first cause: over everything hashed in one pass, the topologically first operator whose inputs are equal.

Inputs bit-equal and output different: the operator is the culprit. Inputs different: the difference came from above.
An input that was not captured: the cause is not known, and this says so. Pure functions of two observations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from bitgate.tools.bisect.graph import AFTER, INPUT_SUFFIX, Node, Point, label, mandatory, nodes, whole_of
from bitgate.tools.bisect.observation import Observation, Series

Array = np.ndarray[Any, Any]
Status = Literal["1:1", "N:1", "absorbed", "unmatched"]


@dataclass(frozen=True)
class Compared:
    """A point on both sides: the keys both computed, which of them differ, and how many only one side computed."""

    keys: Array
    differs: Array
    not_computed: int
    note: str = ""

    @property
    def different(self) -> int:
        return int(self.differs.sum())


@dataclass(frozen=True)
class Cause:
    """`state`: culprit found, or why it could not be. `row`: (sequence, position) where it shows first."""

    state: Literal["culprit", "input_not_captured"]
    node: Node
    row: tuple[int, int]
    rows: int
    inputs_equal: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Localised:
    compared: Mapping[Point, Compared]
    status: Mapping[Point, Status]
    cause: Cause | None
    missing: tuple[Point, ...]
    layers: int
    nodes: tuple[Node, ...]

    @property
    def different(self) -> dict[Point, Compared]:
        return {point: seen for point, seen in self.compared.items() if seen.different}


def localise(a: Observation, b: Observation) -> Localised:
    shown = [point for point in a.points if point in b.points]
    compared = {point: _compare(a.points[point], b.points[point]) for point in shown}
    compared = {point: seen for point, seen in compared.items() if len(seen.keys)}
    depths = [1 + max((layer for layer, _ in seen.points if layer < AFTER), default=-1) for seen in (a, b)]
    graph = [_beyond(node, depths) for node in nodes(list(compared), a.order)]
    layers = max(depths)
    wanted = mandatory(set(a.points) | set(b.points), layers)
    missing = tuple(point for point in wanted if point not in compared)
    status = _statuses(a, b, compared, graph)
    return Localised(compared, status, first_cause(compared, graph), missing, layers, tuple(graph))


def _beyond(node: Node, depths: list[int]) -> Node:
    """Where one side shows layers that the other does not, what follows the last reads something that is not seen."""
    if depths[0] == depths[1] or node.point[0] != AFTER or all(at == AFTER for at, _ in node.parents):
        return node
    return replace(node, lost=(*node.lost, (min(depths), "resid_post")))


def _compare(a: Series, b: Series) -> Compared:
    codes = _codes(a.keys), _codes(b.keys)
    common, ours, theirs = np.intersect1d(*codes, assume_unique=True, return_indices=True)
    differs = (a.digest[ours] != b.digest[theirs]).any(axis=1)
    note = ""
    if (a.dtype, a.width) != (b.dtype, b.width):
        note = f"{a.dtype}[{a.width}] against {b.dtype}[{b.width}]"
    return Compared(a.keys[ours], differs, len(codes[0]) + len(codes[1]) - 2 * len(common), note)


def _codes(keys: Array) -> Array:
    codes: Array = (keys[:, 0].astype(np.int64) << 32) + keys[:, 1].astype(np.int64)
    return codes


def first_cause(compared: Mapping[Point, Compared], graph: list[Node]) -> Cause | None:
    """The first node in topological order with rows that differ although all it reads is equal."""
    unknown: Cause | None = None
    for node in graph:
        seen = compared[node.point]
        if not seen.different or INPUT_SUFFIX in node.point[1]:
            # What a user recorded as an input is only ever looked at as one.
            continue
        own = seen.differs & _inputs_equal(node, seen.keys, compared)
        if not own.any():
            continue
        row = _first_row(seen.keys[own])
        rows = int(own.sum())
        equal = {label(p): int((~compared[p].differs).sum()) for p in (*node.parents, *node.context)}
        if node.lost:
            unknown = unknown or Cause("input_not_captured", node, row, rows, equal)
            return unknown
        return Cause("culprit", node, row, rows, equal)
    return None


def _first_row(keys: Array) -> tuple[int, int]:
    """The row with the shortest context: it makes the smallest repro."""
    best = min(map(tuple, keys.tolist()), key=lambda key: (key[1], key[0]))
    return int(best[0]), int(best[1])


def _inputs_equal(node: Node, keys: Array, compared: Mapping[Point, Compared]) -> Array:
    """Which rows have bit-equal inputs; a row whose parent was not computed on both sides does not count as equal."""
    equal = np.ones(len(keys), bool)
    codes = _codes(keys)
    for parent in node.parents:
        seen = compared[parent]
        equal &= np.isin(codes, _codes(seen.keys[~seen.differs]))
    for parent in node.context:
        equal &= _context_equal(keys, compared[parent])
    return equal


def _context_equal(keys: Array, seen: Compared) -> Array:
    """Rows before the first difference of their sequence."""
    first: dict[int, int] = {}
    for sequence, position in seen.keys[seen.differs].tolist():
        first[sequence] = min(position, first.get(sequence, position))
    return np.asarray([position < first.get(sequence, 1 << 62) for sequence, position in keys.tolist()], bool)


def _statuses(
    a: Observation, b: Observation, compared: Mapping[Point, Compared], graph: list[Node]
) -> dict[Point, Status]:
    """1:1 compared; N:1 compared, and a part of a fused tensor on one side only; absorbed: inside a compared operator;
    unmatched: on one side only, inside nothing."""
    inside = {point for node in graph for point in node.through}
    status: dict[Point, Status] = dict.fromkeys(compared, "1:1")
    for point in compared:
        if bool(a.points[point].whole) != bool(b.points[point].whole):
            status[point] = "N:1"
    for point in (*a.points, *b.points):
        if point not in compared:
            status[point] = "absorbed" if inside & {point, whole_of(point)} else "unmatched"
    for point in inside - set(status):
        status[point] = "absorbed"
    return status
