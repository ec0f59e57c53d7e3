"""Compares the views of an executed plan with their references."""

from __future__ import annotations

from collections.abc import Sequence

from bitgate.store.records import Reason
from bitgate.tools.captures.read import open_captures
from bitgate.tools.checks.execute import Executed
from bitgate.tools.checks.plan import CheckPlan, StepRef, View
from bitgate.tools.compare.legs import compare_views
from bitgate.tools.compare.result import Comparison

REFERENCE = "reference"


def compare_plan(plan: CheckPlan, executed: Executed) -> tuple[list[Comparison], list[Reason]]:
    """One comparison a reference, and what could not be compared at all."""
    comparisons: list[Comparison] = []
    reasons: list[Reason] = []
    for reference in dict.fromkeys(view.reference for view in plan.views):
        views = [view for view in plan.views if view.reference == reference and executed.captures(view.step)]
        comparison, found = _compare(reference, views, executed)
        reasons += found
        if comparison is not None:
            comparisons.append(comparison)
    return comparisons, reasons


def _compare(
    reference: StepRef, views: Sequence[View], executed: Executed
) -> tuple[Comparison | None, Sequence[Reason]]:
    opened, reasons = open_captures(
        {REFERENCE: executed.captures(reference)} | {view.label: executed.captures(view.step) for view in views}
    )
    if REFERENCE not in opened or len(opened) < 2:
        return None, reasons
    base = opened.pop(REFERENCE)
    return compare_views(base, opened, partial={view.label for view in views if view.partial}), reasons
