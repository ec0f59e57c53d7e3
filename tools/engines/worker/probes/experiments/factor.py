"""Is one side's output the other's, times one number?"""

from __future__ import annotations

import torch

from ..oracle import UNIT
from .case import Case, Report

FEW = 64
"""Values compared; fewer may be as far apart by chance."""
ROUNDED, SUMMED = 4.0, 64 * 2.0**-24
"""How near every value must be to the other's times the factor: in units of its rounding, and, as it may be a sum that
nearly cancels, in shares of the row's largest."""
FAR, LEAST = 8.0, 1e-4
"""How far the factor must be from one: in units of rounding, and at least."""


def factor(case: Case, report: Report) -> bool:
    """A scale that one side does not have (of routed experts, of scores), whatever kernels there are.

    Only where the tables are known to be equal: scales kept beside a weight are its bytes.
    """
    held = "weight_bytes" in report.excluded
    a, b = (made.to(torch.float64) for made in case.outputs())
    if report.rounding or not held or case.kind == "logprob" or a.shape != b.shape or a.numel() < FEW:
        return False
    unit = max(UNIT.get(made.dtype, 0.0) for made in case.outputs())
    if not unit or not bool((a.isfinite() & b.isfinite()).all()) or len(a.abs().unique()) < FEW // 4:
        return False
    times = float((a * b).sum() / (a * a).sum().clamp(min=1e-300))
    bound = ROUNDED * unit * b.abs() + SUMMED * b.abs().amax(1, keepdim=True) + 1e-30
    near, far = bool(((b - times * a).abs() <= bound).all()), abs(times - 1) > max(FAR * unit, LEAST)
    report.tried("one side's output times one number", f"{times:.6g}: {'the other' if near and far else 'not it'}")
    if not (near and far):
        return False
    return report.is_("semantic", f"{case.names[1]} is {case.names[0]} times {times:.6g}, in every value")
