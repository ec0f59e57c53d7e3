"""One rounding changed, or all between left out: the other side's bits?"""

from __future__ import annotations

import torch

from ..products import PRODUCTS, SUMS
from ..program import Program
from ..rows import same_bits
from ..toggles import explaining, explaining_two
from ..wide import computed_in
from .case import Case, Report

FEW = 256
"""Numbers compared; fewer may agree by chance under one of hundreds of pairs."""
PAIR_SECONDS = 10.0


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
    return _two(case, report) or report.excludes("precision (one cast)")


def _two(case: Case, report: Report) -> bool:
    """A fused kernel may round in two places otherwise than the operators that it stands for."""
    a, b = case.outputs()
    if a.numel() < FEW:
        return False
    for name, program, rows, wanted in (
        (case.names[0], case.a, case.shared.a, b),
        (case.names[1], case.b, case.shared.b, a),
    ):
        pair = explaining_two(program, wanted, rows, PAIR_SECONDS)
        if pair is not None:
            said = f"{pair[0].said()} and {pair[1].said()}, together, on {name}"
            report.tried(said, "the other side's bits")
            return report.is_("precision", f"{said} give the other side's bits exactly")
    report.tried("two casts changed together, on either side", "none gives the other's bits")
    return False


def _sums(program: Program) -> bool:
    """With a product or a sum inside, a wide run is another kernel too, and shows nothing about casts."""
    return any(op.name in (*PRODUCTS, *SUMS) for op in program.ops)
