"""Compare two captures: identity, then bits, then statistics."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bitgate.store.records import Reason
from bitgate.tools.captures.errors import CaptureError
from bitgate.tools.captures.problems import Problems
from bitgate.tools.captures.read import Capture
from bitgate.tools.captures.rows import RowSource
from bitgate.tools.captures.validate import Limits
from bitgate.tools.compare.facets import clusters, histograms, tally
from bitgate.tools.compare.identity import identity_reasons
from bitgate.tools.compare.join import Unmatched, compare_by_key, refuse_twins
from bitgate.tools.compare.log import DifferenceLog
from bitgate.tools.compare.result import PairResult
from bitgate.tools.compare.rowwise import RowComparer
from bitgate.tools.compare.stream import Checked, compare_in_order, validate_rows
from bitgate.tools.reasons import reason


@dataclass(frozen=True)
class Side:
    """What comparing rows needs of a capture; the counts are None where nothing states them."""

    name: str
    rows: RowSource
    limits: Limits = Limits()
    masked: int | None = None
    sequences: int | None = None


def compare_pair(a: Capture, b: Capture, *, subset: bool = False) -> PairResult:
    """Compare two captures under the response mask.

    subset: b may hold fewer rows than a; what it holds must be rows of a.
    """
    stated = identity_reasons(a, b)
    if stated:
        return PairResult(a.name, b.name, stated, a.rows.count, b.rows.count)
    try:
        return compare_sides(side_of(a), side_of(b), subset=subset)
    except CaptureError as error:
        return PairResult(a.name, b.name, (error.reason,), a.rows.count, b.rows.count)


def side_of(capture: Capture) -> Side:
    meta = capture.meta
    return Side(
        capture.name,
        capture.rows,
        Limits(meta.model.vocab_size, meta.weights.version),
        capture.masked,
        capture.sequences,
    )


def compare_sides(a: Side, b: Side, *, subset: bool = False) -> PairResult:
    """Compare the rows of two sides whose identity is known to agree."""
    comparer, unmatched, by_key = _compare_rows(a, b)
    problems = comparer.problems
    if unmatched.only_b or (unmatched.only_a and not subset):
        count = unmatched.only_b + (0 if subset else unmatched.only_a)
        problems.add("rows_missing", count, _missing(a, b, unmatched, subset))
    if comparer.compared == 0 and not problems:
        problems.add("empty_mask", 1, f"no row of {a.name} and {b.name} is under both masks")
    return _result(a, b, comparer, unmatched, by_key)


def _compare_rows(a: Side, b: Side) -> tuple[RowComparer, Unmatched, bool]:
    if a.rows.count == b.rows.count:
        comparer = RowComparer(a.name, b.name, Problems(), DifferenceLog())
        checked = compare_in_order(a.rows, b.rows, (a.limits, b.limits), comparer, comparer.problems)
        if checked is not None:
            _refuse_counts(a, checked, comparer.problems)
            if not checked.ascending:
                refuse_twins(a.name, a.rows, checked.groups, comparer.problems)
            if "mask_differs" not in comparer.problems:
                alike = a.rows.shards == b.rows.shards  # otherwise a sequence may be counted in other shards
                _refuse_counts(b if alike else replace(b, sequences=None), checked, comparer.problems)
            return comparer, Unmatched(), False
    comparer = RowComparer(a.name, b.name, Problems(), DifferenceLog())
    checked_a = validate_rows(a.name, a.rows, a.limits, comparer.problems)
    checked_b = validate_rows(b.name, b.rows, b.limits, comparer.problems)
    _refuse_counts(a, checked_a, comparer.problems)
    _refuse_counts(b, checked_b, comparer.problems)
    groups = max(checked_a.groups, checked_b.groups)
    return comparer, compare_by_key(a.rows, b.rows, groups, comparer, comparer.problems), True


def _refuse_counts(side: Side, checked: Checked, problems: Problems) -> None:
    for what, found, stated in (
        ("rows under the mask", checked.masked, side.masked),
        ("sequences", checked.groups, side.sequences),
    ):
        if stated is not None and stated != found:
            problems.add("counts_disagree", 1, f"{side.name}: {found} {what}, capture.json says {stated}")


def _missing(a: Side, b: Side, unmatched: Unmatched, subset: bool) -> str:
    parts = []
    if unmatched.only_a and not subset:
        parts.append(f"{unmatched.only_a} rows of {a.name} are not in {b.name}, first {unmatched.first_a}")
    if unmatched.only_b:
        parts.append(f"{unmatched.only_b} rows of {b.name} are not in {a.name}, first {unmatched.first_b}")
    return "; ".join(parts)


def _result(a: Side, b: Side, comparer: RowComparer, unmatched: Unmatched, by_key: bool) -> PairResult:
    problems, log = comparer.problems, comparer.log
    counted = PairResult(
        a.name,
        b.name,
        (),
        a.rows.count,
        b.rows.count,
        comparer.joined,
        comparer.compared,
        comparer.different,
        comparer.different_outside_mask,
        unmatched.only_a,
        unmatched.only_b,
        by_key,
    )
    if problems:
        return replace(counted, reasons=problems.reasons(), problems=problems.counts())
    statistics = log.statistics(comparer.compared)
    if not comparer.different:
        return replace(counted, statistics=statistics)
    tally_a, tally_b = tally(a.rows, log), tally(b.rows, log, places=False)
    return replace(
        counted,
        reasons=_difference_reasons(a, b, comparer),
        sequences_different=log.sequences_different,
        first=log.first(),
        worst=log.worst(),
        statistics=statistics,
        clusters=clusters(log, (a.name, b.name), a.rows, tally_a, tally_b),
        histograms=histograms(log, tally_a),
        table=log.table(),
    )


def _difference_reasons(a: Side, b: Side, comparer: RowComparer) -> tuple[Reason, ...]:
    first = comparer.log.first()
    place = f"; first at sequence {first.sequence}, turn {first.turn}, position {first.position}" if first else ""
    detail = f"{a.name} and {b.name}: {comparer.different} of {comparer.compared} masked rows have other fp32 bits"
    return (reason("logprobs_differ", detail + place),)
