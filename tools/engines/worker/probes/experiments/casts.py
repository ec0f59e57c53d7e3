"""One rounding changed, or all between left out: the other side's bits?"""

from __future__ import annotations

import torch

from ..products import PRODUCTS, SUMS
from ..program import Program
from ..rows import same_bits
from ..toggles import explaining
from ..wide import computed_in
from .case import Case, Report


def precision(case: Case, report: Report) -> bool:
    a, b = case.outputs()
    for name, program, rows, wanted in (
        (case.names[0], case.a, case.shared.a, b),
        (case.names[1], case.b, case.shared.b, a),
    ):
        found = explaining(program, wanted, rows)
        if found:
            report.tried(
                f"one cast of {name} changed at a time", f"{len(found)} single changes give the other side's bits"
            )
            return report.is_("precision", f"{found[0].said()} on {name} gives the other side's bits exactly")
        once = computed_in(program, torch.float32)
        if once is not None and same_bits(once[rows].to(wanted.dtype), wanted) and not _sums(program):
            report.tried(f"{name}: computed in float32 and rounded once", "the other side's bits")
            said = f"{name} rounds between its operators, the other side once at the end"
            return report.is_("precision", said)
    report.tried("one cast changed at a time, and all between left out, on either side", "none gives the other's bits")
    return report.excludes("precision (one cast)")


def _sums(program: Program) -> bool:
    """With a product or a sum inside, a wide run is another kernel too, and shows nothing about casts."""
    return any(op.name in (*PRODUCTS, *SUMS) for op in program.ops)
