"""One rounding changed, or all between left out: the other side's bits?"""

from __future__ import annotations

import torch

from ..products import PRODUCTS, SUMS
from ..program import Program
from ..rows import same_bits
from ..toggles import CASTS, NARROW, explaining, explaining_two
from ..wide import SAME, apart, computed_in
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
        # A result that is rounded at the end may agree by chance; one that is kept wide does not.
        shows = _narrow(program) and (wanted.dtype == torch.float32 or not _sums(program))
        if once is not None and shows and same_bits(once[rows].to(wanted.dtype), wanted):
            report.tried(f"{name}: computed in float32 and rounded once", "the other side's bits")
            said = f"{name} rounds between its operators, the other side once at the end"
            return report.is_("precision", said)
    report.tried("one cast changed at a time, and all between left out, on either side", "none gives the other's bits")
    return _two(case, report) or report.excludes("precision (one cast)")


def _two(case: Case, report: Report) -> bool:
    """A fused kernel may round in two places otherwise than the operators that it stands for."""
    a, b = case.outputs()
    if a.numel() < FEW or _other_functions(case):
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


def _other_functions(case: Case) -> bool:
    """In float64, without any cast: then no number of casts explains them, and hundreds of pairs need not be tried."""
    ours, theirs = (computed_in(program, torch.float64) for program in (case.a, case.b))
    return ours is not None and theirs is not None and apart(ours[case.shared.a], theirs[case.shared.b]) > SAME


def _narrow(program: Program) -> bool:
    """Some value of it is narrow: else there is no rounding to leave out, and a wide run is only another run."""
    dtypes = {value.dtype for value in program.values.values()}
    casts = [str(argument) for op in program.ops if op.name in CASTS for argument in (*op.args, *op.kwargs.values())]
    return bool(dtypes & set(NARROW)) or any(
        name in cast for cast in casts for name in ("bfloat16", "float16", "float8")
    )


def _sums(program: Program) -> bool:
    """With a product or a sum inside, a wide run is another kernel too, and shows nothing about casts."""
    return any(op.name in (*PRODUCTS, *SUMS) for op in program.ops)
