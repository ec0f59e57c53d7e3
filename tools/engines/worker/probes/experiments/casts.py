"""One rounding changed, or all between left out: the other side's bits?"""

from __future__ import annotations

import torch
from torch import Tensor

from ..oracle import UNIT
from ..products import PRODUCTS, SUMS
from ..program import Program
from ..rows import same_bits
from ..toggles import CASTS, NARROW, doubled, explaining, explaining_two
from ..wide import apart, computed_in
from .case import Case, Report
from .tables import tables

FEW = 256
"""Numbers compared; fewer may agree by chance under one of hundreds of pairs."""
ENOUGH = 16.0
"""Bits that two outputs differ in: what a change that has nothing to do with it hits with probability 2^-16 a try."""
PAIR_SECONDS = 10.0


def precision(case: Case, report: Report) -> bool:
    a, b = case.outputs()
    if (seen := told(a, b)) < ENOUGH and not doubled_once(case):
        report.tried("one cast changed at a time", f"not done: they differ by {seen:.0f} bits, which chance may hit")
        return False
    if _tables_known(case, report) and _other_functions(case):
        return _scales(case, report)
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


def _tables_known(case: Case, report: Report) -> bool:
    """Tables of other dtypes are other numbers in float64, and a cast all the same."""
    return "weight_bytes" in report.excluded or not (tables(case.a) or tables(case.b))


def _scales(case: Case, report: Report) -> bool:
    """What is another function in float64 no cast explains; a scale kept as a power of two is one there too."""
    a, b = case.outputs()
    for name, program, rows, wanted in (
        (case.names[0], case.a, case.shared.a, b),
        (case.names[1], case.b, case.shared.b, a),
    ):
        found = explaining(program, wanted, rows, kinds=("power",))
        if found:
            report.tried(f"one scale of {name} rounded up to a power of two", "the other side's bits")
            return report.is_("precision", f"{found[0].said()} on {name} gives the other side's bits exactly")
    report.tried("one cast changed at a time", "not needed: without any cast, in float64, they are other functions")
    return report.excludes("precision (one cast)")


def doubled_once(case: Case) -> bool:
    """One side computes in float64: that is there to be seen, and undoing it is no guess among hundreds."""
    return doubled(case.a) != doubled(case.b)


def told(a: Tensor, b: Tensor) -> float:
    """What agreeing with `b` and not with `a` tells, in bits: one for a neighbour's value, more for one farther away.

    Infinite where the two are no numbers of one shape.
    """
    if a.shape != b.shape or not (a.is_floating_point() and b.is_floating_point()):
        return float("inf")
    ours, theirs = a.to(torch.float64), b.to(torch.float64)
    step = 2 * UNIT.get(b.dtype, 2.0**-24) * torch.maximum(ours.abs(), theirs.abs()).clamp(min=1e-38)
    return float(torch.log2(1 + ((ours - theirs).abs() / step).nan_to_num(nan=1e6).ceil()).sum())


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


def _other_functions(case: Case) -> bool:
    """In float64, without any cast: then no number of casts explains them, and hundreds need not be tried."""
    ours, theirs = (computed_in(program, torch.float64) for program in (case.a, case.b))
    if ours is None or theirs is None:
        return False
    return apart(ours[case.shared.a], theirs[case.shared.b]) > case.function_limit()


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
