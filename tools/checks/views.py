"""Compares the views of an executed plan with their references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bitgate.store.records import Reason
from bitgate.tools.captures.read import Capture, open_captures
from bitgate.tools.checks.execute import Executed
from bitgate.tools.checks.plan import CheckPlan, StepRef, View
from bitgate.tools.compare.legs import compare_views
from bitgate.tools.compare.result import Comparison
from bitgate.tools.reasons import reason

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
    comparison = compare_views(base, opened, complete=False)
    return comparison, [*reasons, *uncovered(base, comparison, {view.label: view.partial for view in views})]


def uncovered(reference: Capture, comparison: Comparison, partial: Mapping[str, bool]) -> list[Reason]:
    """Views that should hold every masked row of the reference and do not."""
    return [
        reason("partial_coverage", f"{label}: {pair.compared} of {reference.masked} rows were compared")
        for label, pair in comparison.pairs.items()
        if pair.compared < reference.masked and not partial[label] and pair.verdict != "invalid"
    ]
