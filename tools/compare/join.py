"""Rows in another order are joined by key (sequence, turn, position), some sequences at a time, in bounded memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bitgate.tools.captures.problems import Problems
from bitgate.tools.captures.rows import Columns, OpenRows, RowSource
from bitgate.tools.captures.validate import where
from bitgate.tools.compare.facets import facets_of
from bitgate.tools.compare.groups import MAX_GROUPS, Groups, find_groups
from bitgate.tools.compare.rowwise import RowComparer, SideBySide

BATCH_ROWS: Final = 1 << 17
BATCH_GROUPS: Final = 512
SMALL_ROWS: Final = 1 << 23
"""Rows of a group lie together; the number of groups bounds how many scattered pages a batch maps. Captures that are
small as a whole need no such bound."""
WINDOW_ROWS: Final = 1 << 21

Ints = NDArray[np.int64]
Key = tuple[int, int, int]


@dataclass(frozen=True)
class Keys:
    """Keys of some rows, and the rows' indices."""

    rows: Ints
    sequence: Ints
    turn: Ints
    position: Ints


@dataclass(frozen=True)
class Aligned:
    """Indices into two `Keys`: `both_a[i]` and `both_b[i]` have one key; the others have no partner or a twin."""

    both_a: Ints
    both_b: Ints
    only_a: Ints
    only_b: Ints
    twice_a: Ints
    twice_b: Ints


@dataclass
class Unmatched:
    """Rows without a partner."""

    only_a: int = 0
    only_b: int = 0
    first_a: str = ""
    first_b: str = ""


def compare_by_key(a: RowSource, b: RowSource, groups: int, comparer: RowComparer, problems: Problems) -> Unmatched:
    """Join the two sides and compare what has a partner. `groups`: the larger number of groups of the two."""
    unmatched = Unmatched()
    parts = groups // MAX_GROUPS + 1
    with a.open() as open_a, b.open() as open_b:
        for part in range(parts):
            groups_a, groups_b = find_groups(a, open_a, part, parts), find_groups(b, open_b, part, parts)
            for name, source, found in zip(comparer.names, (a, b), (groups_a, groups_b), strict=True):
                _refuse_repeated(name, source, found, problems)
            most = BATCH_GROUPS if a.count + b.count > SMALL_ROWS else BATCH_ROWS
            for rows_a, rows_b in _batches(groups_a, groups_b, open_a, open_b, most):
                keys_a, keys_b = _keys(a, open_a, rows_a), _keys(b, open_b, rows_b)
                aligned = align(keys_a, keys_b)
                _note(comparer.names, keys_a, keys_b, aligned, unmatched, problems)
                _compare(a, open_a, b, open_b, keys_a, keys_b, aligned, comparer)
                open_a.drop()
                open_b.drop()
    return unmatched


def refuse_twins(name: str, source: RowSource, groups: int, problems: Problems) -> None:
    """Report keys that appear twice in one side. Only sequences with more than one group can hold them."""
    parts = groups // MAX_GROUPS + 1
    with source.open() as opened:
        for part in range(parts):
            split = find_groups(source, opened, part, parts).split()
            _refuse_repeated(name, source, split, problems)
            for rows, _ in _batches(split, split, opened, opened, BATCH_GROUPS):
                keys = _keys(source, opened, rows)
                _note_twins(name, keys, align(keys, keys).twice_a, problems)
                opened.drop()


def align(a: Keys, b: Keys) -> Aligned:
    """Match keys. The usual case, equal and strictly growing keys on both sides, costs one comparison."""
    none = np.empty(0, np.int64)
    if len(a.rows) == len(b.rows) and all(_same(a, b)) and _grows(a):
        every = np.arange(len(a.rows), dtype=np.int64)
        return Aligned(every, every, none, none, none, none)
    side = np.concatenate([np.zeros(len(a.rows), np.int8), np.ones(len(b.rows), np.int8)])
    sequence, turn, position = (
        np.concatenate([getattr(a, name), getattr(b, name)]) for name in ("sequence", "turn", "position")
    )
    order = np.lexsort((side, position, turn, sequence))
    sequence, turn, position, side = sequence[order], turn[order], position[order], side[order]
    equal = (sequence[1:] == sequence[:-1]) & (turn[1:] == turn[:-1]) & (position[1:] == position[:-1])
    twin = np.concatenate([[False], equal & (side[1:] == side[:-1])])
    partner = np.flatnonzero(equal & (side[1:] != side[:-1]))
    matched = np.zeros(len(order), np.bool_)
    matched[partner] = matched[partner + 1] = True
    alone = ~matched & ~twin
    index = np.where(side == 0, order, order - len(a.rows))
    return Aligned(
        index[partner],
        index[partner + 1],
        index[alone & (side == 0)],
        index[alone & (side == 1)],
        index[twin & (side == 0)],
        index[twin & (side == 1)],
    )


def _same(a: Keys, b: Keys) -> Iterator[bool]:
    for name in ("sequence", "turn", "position"):
        yield bool(np.array_equal(getattr(a, name), getattr(b, name)))


def _grows(keys: Keys) -> bool:
    sequence, turn, position = keys.sequence, keys.turn, keys.position
    later = position[1:] > position[:-1]
    later = (turn[1:] > turn[:-1]) | ((turn[1:] == turn[:-1]) & later)
    return bool(np.all((sequence[1:] > sequence[:-1]) | ((sequence[1:] == sequence[:-1]) & later)))


def _batches(a: Groups, b: Groups, open_a: OpenRows, open_b: OpenRows, most: int) -> Iterator[tuple[Ints, Ints]]:
    """Row indices of the same sequences on both sides, some sequences and at most `most` groups at a time."""
    every = np.concatenate([a.sequence, b.sequence])
    ids, inverse = np.unique(every, return_inverse=True)
    rows = np.bincount(inverse, np.concatenate([a.length, b.length]), len(ids)).astype(np.int64)
    done_rows, done_groups = np.cumsum(rows), np.cumsum(np.bincount(inverse, minlength=len(ids)))
    low = 0
    while low < len(ids):
        rows_before, groups_before = (int(done_rows[low - 1]), int(done_groups[low - 1])) if low else (0, 0)
        high = min(
            int(np.searchsorted(done_rows, rows_before + BATCH_ROWS, "right")),
            int(np.searchsorted(done_groups, groups_before + most, "right")),
        )
        high = max(high, low + 1)
        part_a, part_b = a.of(int(ids[low]), int(ids[high - 1])), b.of(int(ids[low]), int(ids[high - 1]))
        if high == low + 1 and rows[low] > WINDOW_ROWS:
            yield from _windows(part_a, part_b, open_a, open_b)
        else:
            yield part_a.rows(), part_b.rows()
        low = high


def _windows(a: Groups, b: Groups, open_a: OpenRows, open_b: OpenRows) -> Iterator[tuple[Ints, Ints]]:
    """One huge sequence, cut at keys: rows grow within a group, so a cut is a binary search in each group."""
    sides = ((a, open_a), (b, open_b))
    cursors = [group.start.copy() for group, _ in sides]
    ends = [group.start + group.length for group, _ in sides]
    step = max(1, WINDOW_ROWS // (len(a.start) + len(b.start)))
    while True:
        pivots = [
            _position(opened, min(int(cursor) + step, int(end)) - 1)
            for (_, opened), side, stop in zip(sides, cursors, ends, strict=True)
            for cursor, end in zip(side, stop, strict=True)
            if cursor < end
        ]
        if not pivots:
            return
        pivot, window = min(pivots), []
        for (_, opened), side, stop in zip(sides, cursors, ends, strict=True):
            bounds = zip(side.tolist(), stop.tolist(), strict=True)
            cuts = np.array([_cut(opened, low, high, pivot) for low, high in bounds], np.int64)
            window.append(Groups(cuts, side.copy(), cuts - side).rows())
            side[:] = cuts
            opened.drop()
        yield window[0], window[1]


def _cut(opened: OpenRows, low: int, high: int, pivot: tuple[int, int]) -> int:
    return low + bisect_right(range(low, high), pivot, key=lambda row: _position(opened, row))


def _position(opened: OpenRows, row: int) -> tuple[int, int]:
    at = np.array([row], np.int64)
    turn = int(opened.gather("turn", at)[0]) if opened.holds("turn") else 0
    return turn, int(opened.gather("position", at)[0])


def _keys(source: RowSource, opened: OpenRows, rows: Ints) -> Keys:
    turn = opened.gather("turn", rows).astype(np.int64) if "turn" in source.held else np.zeros(len(rows), np.int64)
    return Keys(rows, opened.gather("sequence", rows), turn, opened.gather("position", rows))


def _refuse_repeated(name: str, source: RowSource, groups: Groups, problems: Problems) -> None:
    shard = np.searchsorted(np.cumsum(source.shards), groups.start, "right")
    again = (groups.sequence[1:] == groups.sequence[:-1]) & (shard[1:] == shard[:-1])
    if again.any():
        at = int(np.argmax(again)) + 1
        detail = f"{name}: sequence {groups.sequence[at]} ends and begins again in row {groups.start[at]}"
        problems.add("sequence_repeated", int(np.count_nonzero(again)), detail)


def _note(names: tuple[str, str], a: Keys, b: Keys, aligned: Aligned, unmatched: Unmatched, problems: Problems) -> None:
    _note_twins(names[0], a, aligned.twice_a, problems)
    _note_twins(names[1], b, aligned.twice_b, problems)
    unmatched.only_a += len(aligned.only_a)
    unmatched.only_b += len(aligned.only_b)
    if len(aligned.only_a) and not unmatched.first_a:
        unmatched.first_a = _where(a, aligned.only_a)
    if len(aligned.only_b) and not unmatched.first_b:
        unmatched.first_b = _where(b, aligned.only_b)


def _note_twins(name: str, keys: Keys, twice: Ints, problems: Problems) -> None:
    if len(twice):
        problems.add("duplicate_key", len(twice), f"{name}: {_where(keys, twice)} appears twice")


def _where(keys: Keys, chosen: Ints) -> str:
    at = int(chosen[0])
    return where((keys.sequence[at], keys.turn[at], keys.position[at]))


def _compare(
    a: RowSource, open_a: OpenRows, b: RowSource, open_b: OpenRows, keys_a: Keys, keys_b: Keys, aligned: Aligned,
    comparer: RowComparer,
) -> None:  # fmt: skip
    if not len(aligned.both_a):
        return
    rows_a, rows_b = keys_a.rows[aligned.both_a], keys_b.rows[aligned.both_b]
    columns_a = _side(a, open_a, rows_a, keys_a, aligned.both_a)
    columns_b = _side(b, open_b, rows_b, keys_b, aligned.both_b)
    chunk = SideBySide(columns_a, columns_b, rows_a, rows_b)
    differing = comparer.compare(chunk)
    if len(differing):
        comparer.record(chunk, differing, facets_of(a, open_a, b, open_b, rows_a[differing], rows_b[differing]))


def _side(source: RowSource, opened: OpenRows, rows: Ints, keys: Keys, chosen: Ints) -> Columns:
    columns: dict[str, NDArray[Any]] = {
        "sequence": keys.sequence[chosen], "turn": keys.turn[chosen], "position": keys.position[chosen],
    }  # fmt: skip
    for name in ("token_id", "mask", "logprob", "weight_version"):
        if name in source.held:
            columns[name] = opened.gather(name, rows)
    return columns
