"""Another order of summation, shown by the fingerprints of the two."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from ..oracle import UNIT
from ..products import PRODUCTS, order_of
from ..program import Program
from ..rows import differing
from ..wide import apart, computed_in
from .case import Case, Report
from .casts import doubled_once


def say_orders(case: Case, report: Report, orders: list[Any]) -> None:
    for name, order in zip(case.names, orders, strict=True):
        report.tried(
            f"{name}: accumulation order of {order['operator']} with {order['rows']} rows",
            f"fingerprint {order['order']} ({order['levels']} levels over {order['probes']} probes)",
        )


FEW: Final = 16
"""Partial sums that may each be rounded to the narrow dtype, as shares of ranks are."""


def _rounded_alike(case: Case, report: Report) -> bool:
    """Both as near to what they compute in float64 as sums in their own dtype are; a narrow one inside is not."""
    for name, program, rows, made in (
        (case.names[0], case.a, case.shared.a, case.outputs()[0]),
        (case.names[1], case.b, case.shared.b, case.outputs()[1]),
    ):
        wide = computed_in(program, torch.float64)
        if wide is None or not report.rounding:
            # The declared formula has bounded both.
            continue
        terms = max((v.shape[-1] for v in program.values.values() if v.ndim), default=1)
        bound = FEW * unit_of(made, program) + terms * 2.0**-24
        if (far := apart(made.to(torch.float64), wide[rows])) > bound:
            report.tried(
                f"{name}: against itself in float64", f"{far:.2g} apart, more than its dtype rounds ({bound:.2g})"
            )
            return False
    return True


def unit_of(made: Tensor, program: Program) -> float:
    """Of the output, or of what the program is given, whichever is coarser."""
    given = [program.values[name].dtype for name in program.inputs.values()]
    return max(UNIT.get(dtype, 2.0**-24) for dtype in (made.dtype, *given))


def order(case: Case, report: Report) -> bool:
    """Another order of summation: both near the formula, and the fingerprints of the two kernels unlike."""
    if "semantic" not in report.excluded or not _rounded_alike(case, report):
        return _of_rounding(report)
    if doubled_once(case):
        report.tried("accumulation order", "not compared: one side adds up in float64, which alone may be the cause")
        return _of_rounding(report)
    alike = []
    for place in _places(case):
        orders = [order_of(p, int(rows[place])) for p, rows in ((case.a, case.shared.a), (case.b, case.shared.b))]
        if not (orders[0] and orders[1]):
            report.tried("accumulation order", "no product or sum to fingerprint on one of the sides")
            continue
        say_orders(case, report, orders)
        if orders[0]["probed"] != orders[1]["probed"]:
            # Fingerprints of unlike probes say nothing of each other.
            continue
        if not _of_one_place(case, orders):
            report.tried("accumulation order", "several products on a side: which of them belong together is not known")
            continue
        if orders[0]["order"] != orders[1]["order"]:
            kinds = f"{orders[0]['operator']} and {orders[1]['operator']}"
            said = f"{kinds} sum the same terms in another order{_at(case, place)}; both are within the bound"
            return report.is_("reduction_order", said)
        alike.append(orders[0]["levels"] > 1)
    if alike and all(alike):
        report.excludes("reduction_order (the probed order is the same)")
    return _of_rounding(report)


def _places(case: Case) -> list[int]:
    """The row in question, and, as rows that read few others have few orders, the last of its sequence that differs."""
    target = case.shared.target
    keys = [case.a.rows[int(row)] for row in case.shared.a]
    unlike = torch.nonzero(differing(*case.outputs())).flatten().tolist()
    later = [n for n in unlike if keys[n][0] == keys[target][0] and keys[n][1] > keys[target][1]]
    return [target, *sorted(later, key=lambda n: keys[n][1])[-1:]]


def _at(case: Case, place: int) -> str:
    if place == case.shared.target:
        return ""
    sequence, position = case.a.rows[int(case.shared.a[place])]
    return f" at sequence {sequence}, position {position}"


def _of_rounding(report: Report) -> bool:
    if report.rounding and not report.mechanism:
        report.mechanism = "in float64 both are the same function: it is rounding, and which is not shown"
    return False


def _of_one_place(case: Case, orders: list[Any]) -> bool:
    """Whether both fingerprints are of the same sum: of the regions, of the same operators, or of the only product."""
    if all(order_.get("whole") for order_ in orders):
        return True
    names = [[op.name for op in program.ops if op.name in PRODUCTS] for program in (case.a, case.b)]
    return names[0] == names[1] or max(map(len, names)) <= 1
