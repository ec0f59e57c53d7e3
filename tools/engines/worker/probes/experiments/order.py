"""Another order of summation, shown by the fingerprints of the two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..products import order_of
from .case import Case, Report


def say_orders(case: Case, report: Report, orders: list[Any]) -> None:
    for name, order in zip(case.names, orders, strict=True):
        report.tried(
            f"{name}: accumulation order of {order['operator']} with {order['rows']} rows",
            f"fingerprint {order['order']} ({order['levels']} levels over {order['probes']} probes)",
        )


def order(case: Case, report: Report) -> bool:
    """Another order of summation: both near the formula, and the fingerprints of the two kernels unlike."""
    if "semantic" not in report.excluded:
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
    if orders[0]["order"] == orders[1]["order"]:
        return report.excludes("reduction_order (the probed order is the same)")
    kinds = f"{orders[0]['operator']} and {orders[1]['operator']}"
    return report.is_("reduction_order", f"{kinds} sum the same products in another order; both are within the bound")
