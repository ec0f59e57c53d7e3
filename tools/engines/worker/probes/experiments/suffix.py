"""One side computes the other's output on its way, and then does something more."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..gpu import home
from ..oracle import UNIT
from ..program import FRESH, Op, Program
from ..rows import rows_of, same_bits
from .case import Case, Report

FAR = 16.0
"""Times the unit of rounding of the output: what comes after the common part is more than a cast."""


def suffix(case: Case, report: Report) -> bool:
    """Needs no formula: the other side's bits inside the program, and what is done to them in float64's terms."""
    if report.rounding:
        # One function in float64: what comes after is rounding, however much of it.
        return False
    a, b = case.outputs()
    for name, program, rows, wanted, made in (
        (case.names[0], case.a, case.shared.a, b, a),
        (case.names[1], case.b, case.shared.b, a, b),
    ):
        after = _after(program, rows, wanted)
        if after is None:
            continue
        report.tried(f"{name}: the other side's output inside its own operators", f"found, and then {after}")
        wide = (made.to(torch.float64) - wanted.to(torch.float64)).abs()
        bound = FAR * UNIT.get(made.dtype, 2.0**-24) * wanted.to(torch.float64).abs()
        if bool((wide > bound).any()):
            return report.is_("semantic", f"{name} computes the other side's output, and then does {after}")
        return False
    return False


def _after(program: Program, rows: Tensor, wanted: Tensor) -> str | None:
    """Names of the operators after the last tensor that has the bits `wanted`; None where none has."""
    at: list[int] = []

    def look(number: int, op: Op, env: dict[str, Any]) -> None:
        if op.name.split(".")[1] in FRESH:
            # A buffer that is filled piece by piece may hold the other side's output before that.
            for fresh in filter(None, op.outs):
                if env[fresh].is_floating_point():
                    env[fresh].fill_(float("nan"))
        for name in (*op.outs, *op.writes):
            value = rows_of(home(env.get(name)), len(program.rows)) if name is not None else None
            if value is not None and value.is_floating_point() and same_bits(value[rows], wanted):
                at.append(number)

    program.run(hook=look)
    rest = list(dict.fromkeys(op.name for op in program.ops[at[-1] + 1 :])) if at else []
    return ", ".join(rest[:6]) or None
