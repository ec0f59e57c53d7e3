"""Is one side's output the other's, times one number?"""

from __future__ import annotations

import torch

from ..oracle import UNIT
from .case import Case, Report

FEW = 64
"""Values compared; fewer may be as far apart by chance."""
ROUNDED, FAR = 4.0, 64.0
"""Times the unit of rounding: how near every value must be to the other's times the factor, and how far it from one."""


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
    near = bool(((b - times * a).abs() <= ROUNDED * unit * b.abs() + 1e-30).all())
    far = abs(times - 1) > FAR * unit
    report.tried("one side's output times one number", f"{times:.6g}: {'the other' if near and far else 'not it'}")
    if not (near and far):
        return False
    return report.is_("semantic", f"{case.names[1]} is {case.names[0]} times {times:.6g}, in every value")
