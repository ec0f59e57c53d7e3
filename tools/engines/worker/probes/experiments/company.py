"""The same operators, weights and row: does the row's company change its bits?"""

from __future__ import annotations

from collections import Counter

from ..products import order_of
from ..program import Program
from ..rows import rows_of, same_bits
from ..shrink import with_rows
from ..toggles import operators
from .case import Case, Report
from .leaf import plain_name
from .order import say_orders
from .plans import plan_toggled
from .replay import attempt
from .tables import same_table, tables


def batch(case: Case, report: Report) -> bool:
    """The same operators with the same weights and the same row: only the row's company is different."""
    calls = [Counter(plain_name(op.name) for _, op in operators(program)) for program in (case.a, case.b)]
    same = _sequence(case.a) == _sequence(case.b)
    held = all(any(same_table(t, o) for o in tables(case.b)) for t in tables(case.a))
    if case.same_side and calls[0].keys() != calls[1].keys():
        report.tried("operators of the two conditions", "other kernels are called")
        said = f"one side takes other kernels under the two conditions: {_difference(*calls)}"
        return report.is_("batch_variance", said)
    if not (same and held) and not case.same_side:
        return False
    if not same:
        report.tried("operators of the two conditions", f"the same kernels, {_counted(*calls)}")
    if not held:
        report.tried("tables of the two conditions", "not matched with each other: their bytes, or their forms, differ")
    shapes = _shapes(case)
    if same and shapes[0] == shapes[1] and not _attention(case.a):
        report.tried("operators, weights and shapes", "all the same, and yet other bits")
        return False
    return _shown(case, report) or (held and (not same or shapes[0] != shapes[1]) and _unshown(case, report))


def _shown(case: Case, report: Report) -> bool:
    """An experiment that shows how company matters, or at least that nothing else does."""
    plan = plan_toggled(case, report)
    if plan:
        return report.is_("batch_variance", plan)
    orders = [
        order_of(p, int(rows[case.shared.target])) for p, rows in ((case.a, case.shared.a), (case.b, case.shared.b))
    ]
    if orders[0] and orders[1]:
        say_orders(case, report, orders)
        if orders[0]["probed"] == orders[1]["probed"] and orders[0]["order"] != orders[1]["order"]:
            rows = list(dict.fromkeys(str(o["rows"]) for o in orders if o))
            when = f"for {' and '.join(rows)} rows" if len(rows) > 1 else "under the two conditions"
            return report.is_("batch_variance", f"{orders[0]['operator']} sums in another order {when}")
    if _cut_equal(case, report):
        return report.is_("batch_variance", "the row's bits change with the number of rows beside it")
    if _equal_among_themselves(case, report):
        return report.is_("batch_variance", f"{_first(report)} gives this row other bits with other rows beside it")
    return False


def _unshown(case: Case, report: Report) -> bool:
    """The same operators, weights and row on one side, in other company: that it matters is all that is left."""
    if not case.same_side or "input_layout" not in report.excluded:
        return False
    said = f"{_first(report)} gives this row other bits in other company; how is not shown"
    return report.is_("batch_variance", said)


def _first(report: Report) -> str:
    return str(report.leaf.get("first") or "a kernel of the region")


def _sequence(program: Program) -> list[str]:
    return [plain_name(op.name) for _, op in operators(program)]


def _difference(a: Counter[str], b: Counter[str]) -> str:
    ours, theirs = (", ".join(sorted(one.keys() - other.keys())) for one, other in ((a, b), (b, a)))
    return f"{ours or 'no other'} against {theirs or 'no other'}"


def _counted(a: Counter[str], b: Counter[str]) -> str:
    unlike = [f"{name} {a[name]} and {b[name]} times" for name in sorted(a) if a[name] != b[name]]
    return ", ".join(unlike[:3]) or "in another order"


def _shapes(case: Case) -> list[list[list[int]]]:
    return [[list(p.values[n].shape) for n in p.inputs.values()] for p in (case.a, case.b)]


def _attention(program: Program) -> bool:
    return any("attention" in op.name for op in program.ops)


def _equal_among_themselves(case: Case, report: Report) -> bool:
    """Both programs on the rows that they share: the same company, and so the same bits if company is all."""
    found = []
    for program, places in ((case.a, case.shared.a), (case.b, case.shared.b)):
        cut = with_rows(program, places.tolist())
        result = rows_of(attempt(cut), len(cut.rows)) if cut is not None else None
        if result is None:
            return False
        found.append(result)
    equal = same_bits(found[0], found[1])
    report.tried("both on the rows that they share, and no others", "the same bits" if equal else "other bits")
    return equal


def _cut_equal(case: Case, report: Report) -> bool:
    """The larger program cut to the rows of the smaller one: if that gives the smaller one's bits, company matters."""
    small, large, places = (case.a, case.b, case.shared.b)
    wanted = case.outputs()[0]
    if len(case.a.rows) > len(case.b.rows):
        small, large, places, wanted = case.b, case.a, case.shared.a, case.outputs()[1]
    cut = with_rows(large, places.tolist())
    result = rows_of(attempt(cut), len(cut.rows)) if cut is not None else None
    if result is None or len(small.rows) != len(places):
        return False
    equal = same_bits(result, wanted)
    report.tried("the larger batch cut to the rows of the smaller", "the smaller one's bits" if equal else "other bits")
    return equal
