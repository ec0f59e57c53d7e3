"""Another order of summation, shown by the fingerprints of the two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..oracle import UNIT
from ..products import order_of
from ..program import Program
from ..wide import apart, computed_in
from .case import Case, Report


def say_orders(case: Case, report: Report, orders: list[Any]) -> None:
    for name, order in zip(case.names, orders, strict=True):
        report.tried(
            f"{name}: accumulation order of {order['operator']} with {order['rows']} rows",
            f"fingerprint {order['order']} ({order['levels']} levels over {order['probes']} probes)",
        )


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
        bound = 2 * unit_of(made, program) + terms * 2.0**-24
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
        return False
    steps: list[Callable[[], Any]] = [
        lambda: order_of(case.a, int(case.shared.a[case.shared.target])),
        lambda: order_of(case.b, int(case.shared.b[case.shared.target])),
    ]
    orders = [step() for step in steps]
    if not (orders[0] and orders[1]):
        report.tried("accumulation order", "no product or sum to fingerprint on one of the sides")
        return False
    say_orders(case, report, orders)
    if orders[0]["probed"] != orders[1]["probed"]:
        # Fingerprints of unlike probes say nothing of each other.
        return False
    if orders[0]["order"] == orders[1]["order"]:
        return report.excludes("reduction_order (the probed order is the same)")
    kinds = f"{orders[0]['operator']} and {orders[1]['operator']}"
    return report.is_("reduction_order", f"{kinds} sum the same products in another order; both are within the bound")
