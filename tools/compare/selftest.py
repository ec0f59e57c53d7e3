"""Prove that the comparison can see: faults planted in copies of real windows must each be found, by the same code.

A window is some rows of one side, copied into memory; the copy is compared with a copy that holds one fault. The
control, two copies without a fault, must be equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bitgate.tools.captures.read import Capture
from bitgate.tools.captures.rows import DTYPES, ArrayRows, Columns, OpenRows, RowSource, read_column
from bitgate.tools.compare.pair import Side, compare_sides
from bitgate.tools.compare.result import PairResult, SelfTest

WINDOW_ROWS: Final = 512
SCAN_ROWS: Final = 1 << 17
SIGN_BIT: Final = np.uint32(1 << 31)

Found = Callable[[PairResult], bool]


@dataclass(frozen=True)
class Planted:
    """A pair of windows that differ in one fault, and what finding it means."""

    sound: Columns
    faulty: Columns
    found: Found


Plant = Callable[[Columns, NDArray[np.int64], np.random.Generator], Planted | None]


def self_test(a: Capture, b: Capture) -> SelfTest:
    """Plant every fault in the first, a random and the last masked window of `b`, and compare.

    `a` and `b` seed the random choices, so that a run can be repeated.
    """
    seed = _seed(a, b)
    random = np.random.default_rng(seed)
    planted, seen, skipped, windows = [], [], [], {}
    for place, (start, stop) in _windows(b.rows, random).items():
        window = _copy(b.rows, start, stop)
        windows[place] = (start, stop)
        if _compare(window, _clone(window)).verdict != "pass":
            continue
        under = np.flatnonzero(window["mask"])
        for name, plant in FAULTS.items():
            label, fault = f"{name}@{place}", plant(window, under, random)
            if fault is None:
                skipped.append(label)
                continue
            planted.append(label)
            if fault.found(_compare(fault.sound, fault.faulty)):
                seen.append(label)
    return SelfTest(tuple(planted), tuple(seen), tuple(skipped), windows, seed)


def _compare(a: Columns, b: Columns) -> PairResult:
    return compare_sides(Side("copy", ArrayRows(a)), Side("planted", ArrayRows(b)))


def _with(window: Columns, column: str, row: int, value: Any) -> Columns:
    changed = _clone(window)
    changed[column][row] = value
    return changed


def _differs(window: Columns, *rows: int) -> Found:
    """Exactly these rows are reported as different, the first of them first."""

    def found(result: PairResult) -> bool:
        first = result.first
        exact = result.verdict == "fail" and result.different == len(rows)
        return exact and first is not None and first.row_a == min(rows)

    return found


def _refused(code: str) -> Found:
    return lambda result: result.verdict == "invalid" and code in result.problems


def _lower(value: np.float32, by: float = 0.0) -> np.float32:
    """Lower by so much, and by one ulp at least: beside a large logprob 0.9 is nothing. The lowest number goes up."""
    with np.errstate(over="ignore"):
        lower = min(value - np.float32(by), np.nextafter(value, np.float32(-np.inf)))
    return np.float32(lower if np.isfinite(lower) else np.nextafter(value, np.float32(0)))


def _one_ulp(window: Columns, under: NDArray[np.int64], random: np.random.Generator) -> Planted:
    row = int(random.choice(under))
    return Planted(window, _with(window, "logprob", row, _lower(window["logprob"][row])), _differs(window, row))


def _last_row(window: Columns, under: NDArray[np.int64], random: np.random.Generator) -> Planted:
    row = int(under[-1])
    return Planted(window, _with(window, "logprob", row, _lower(window["logprob"][row], 0.9)), _differs(window, row))


def _swapped_rows(window: Columns, under: NDArray[np.int64], random: np.random.Generator) -> Planted | None:
    bits = window["logprob"].view(np.uint32)
    other = under[bits[under] != bits[under[0]]]
    if not len(other):
        return None
    one, two = int(under[0]), int(random.choice(other))
    changed = _with(window, "logprob", one, window["logprob"][two])
    changed["logprob"][two] = window["logprob"][one]
    return Planted(window, changed, _differs(window, one, two))


def _sign_of_zero(window: Columns, under: NDArray[np.int64], random: np.random.Generator) -> Planted:
    row = int(random.choice(under))
    sound = _with(window, "logprob", row, np.float32(0.0))
    return Planted(sound, _with(window, "logprob", row, np.float32(-0.0)), _differs(window, row))


def _one_sided_nan(window: Columns, under: NDArray[np.int64], random: np.random.Generator) -> Planted:
    return Planted(window, _with(window, "logprob", int(random.choice(under)), np.nan), _refused("not_finite"))


def _negated(window: Columns, under: NDArray[np.int64], random: np.random.Generator) -> Planted | None:
    if not (window["logprob"][under] < 0).any():
        return None
    changed = _clone(window)
    changed["logprob"].view(np.uint32)[:] ^= SIGN_BIT
    return Planted(window, changed, _refused("logprob_positive"))


def _dropped_row(window: Columns, under: NDArray[np.int64], random: np.random.Generator) -> Planted | None:
    if len(window["mask"]) < 2:
        return None
    row = int(random.choice(under))
    return Planted(window, {name: np.delete(column, row) for name, column in window.items()}, _refused("rows_missing"))


def _other_token(window: Columns, under: NDArray[np.int64], random: np.random.Generator) -> Planted:
    row = int(random.choice(under))
    token = int(window["token_id"][row])
    return Planted(window, _with(window, "token_id", row, abs(token - 1)), _refused("token_ids_differ"))


def _shifted(window: Columns, under: NDArray[np.int64], random: np.random.Generator) -> Planted | None:
    """Every logprob one row too late: the usual off-by-one between logits and labels."""
    changed = _clone(window)
    changed["logprob"] = np.roll(changed["logprob"], 1)
    bits, other = window["logprob"].view(np.uint32), changed["logprob"].view(np.uint32)
    rows = under[bits[under] != other[under]]
    sound = np.isfinite(changed["logprob"][under]).all() and (changed["logprob"][under] <= 0).all()
    return Planted(window, changed, _differs(window, *rows.tolist())) if len(rows) and sound else None


FAULTS: Final[Mapping[str, Plant]] = {
    "one_ulp": _one_ulp,
    "swapped_rows": _swapped_rows,
    "sign_of_zero": _sign_of_zero,
    "one_sided_nan": _one_sided_nan,
    "dropped_row": _dropped_row,
    "off_by_one_token": _other_token,
    "off_by_one_row": _shifted,
    "negated": _negated,
    "last_row_wrong": _last_row,
}


def _windows(rows: RowSource, random: np.random.Generator) -> dict[str, tuple[int, int]]:
    """Row ranges that hold masked rows, first, random and last; fewer where they are the same."""
    with rows.open() as opened:
        first, last = _first_masked(opened, rows.count), _last_masked(opened, rows.count)
        if first is None or last is None:
            return {}
        middle = int(random.integers(first, last + 1))
        while not read_column(opened, "mask", middle, min(middle + WINDOW_ROWS, last + 1)).any():
            middle = int(random.integers(first, last + 1))
    found = {
        "first": (first, min(first + WINDOW_ROWS, rows.count)),
        "last": (max(0, last + 1 - WINDOW_ROWS), last + 1),
        "random": (middle, min(middle + WINDOW_ROWS, rows.count)),
    }
    return found


def _first_masked(opened: OpenRows, count: int) -> int | None:
    for start in range(0, count, SCAN_ROWS):
        found = np.flatnonzero(read_column(opened, "mask", start, min(start + SCAN_ROWS, count)))
        if len(found):
            return start + int(found[0])
    return None


def _last_masked(opened: OpenRows, count: int) -> int | None:
    for stop in range(count, 0, -SCAN_ROWS):
        start = max(0, stop - SCAN_ROWS)
        found = np.flatnonzero(read_column(opened, "mask", start, stop))
        if len(found):
            return start + int(found[-1])
    return None


def _copy(rows: RowSource, start: int, stop: int) -> Columns:
    with rows.open() as opened:
        return {name: read_column(opened, name, start, stop) for name in DTYPES if name in rows.held}


def _clone(window: Columns) -> Columns:
    return {name: column.copy() for name, column in window.items()}


def _seed(a: Capture, b: Capture) -> int:
    ids = [meta.computation.id for capture in (a, b) for meta in capture.metas if meta.computation is not None]
    return int.from_bytes(hashlib.sha256("".join(ids).encode()).digest()[:4], "little")
