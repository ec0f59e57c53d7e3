"""What is exact: the integers and inputs of the row, signs and payloads, discrete choices."""

from __future__ import annotations

import torch

from ..rows import differing, same_bits, same_values
from .case import Case, Report


def inputs_unlike(case: Case, report: Report) -> bool:
    """Integers that the region reads (positions, lengths, tables of the same shape) must be the same."""
    ours, theirs = case.inputs(0), case.inputs(1)
    unlike = [n for n in ours if n in theirs and bool(differing(ours[n], theirs[n])[case.shared.target])]
    if unlike and all(not ours[n].is_floating_point() for n in unlike):
        return report.is_("layout_mask", f"{', '.join(unlike)} differ at this row")
    if unlike:
        report.tried("inputs at the row", f"{', '.join(unlike)} differ there")
        return False
    report.tried("inputs at the row, and the integers among them", "equal on both sides")
    return report.excludes("input_layout")


def sign_only(case: Case, report: Report) -> bool:
    a, b = case.outputs()
    if a.dtype == b.dtype and same_values(a, b) and not same_bits(a, b):
        return report.is_("sign_or_payload", "equal as numbers: only the sign of zeros or the payload of NaNs differs")
    return report.excludes("sign_or_payload")


def routing(case: Case, report: Report) -> bool:
    """Discrete choices from equal scores: a tie broken differently, or another order of the same set."""
    if case.kind != "topk":
        return False
    a, b = case.outputs()
    scores = next((t for n, t in case.inputs(0).items() if n.endswith("router_logits")), None)
    if a.is_floating_point() or scores is None:
        return False
    sets = bool((a.sort(dim=1).values == b.sort(dim=1).values).all())
    if sets:
        report.tried("the chosen experts as sets", "the same; only their order differs")
        return report.is_("index_order", "the same experts in another order")
    rows = (a.sort(dim=1).values != b.sort(dim=1).values).any(dim=1)
    ranked = scores[rows].to(torch.float64).sort(dim=1, descending=True).values
    if ranked.shape[1] <= a.shape[1]:
        # Nobody is left out, as in a program that was cut to the chosen experts.
        return False
    margin = ranked[:, a.shape[1] - 1] - ranked[:, a.shape[1]]
    tie = margin == 0
    report.tried("margin between the last chosen and the first left out", f"largest {float(margin.max()):.3g}")
    if bool(tie.all()):
        return report.is_(
            "routing_tie", f"{int(rows.sum())} rows with exactly equal scores at the edge, broken differently"
        )
    return report.is_("semantic", f"equal scores with a margin up to {float(margin.max()):.3g}, but other experts")
