"""A step that one side takes and the other does not: left out, does it give the other side's bits?

A cap, a bias, a scale, a clamp, a mask, a round trip through a narrow format, wherever in the region it lies. The
value that a chain of operators made is put back to what the chain was given, of the same shape.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..gpu import home
from ..program import Op, Program, tensors_of
from ..rows import rows_of, same_bits
from ..toggles import CASTS, VIEWS
from .case import Case, Report

LONGEST = 6
"""Operators in a chain that is left out."""
SECONDS = 6.0
MASKING = ("masked_fill", "where")

Chain = tuple[str, int, tuple[int, ...]]
"""The tensor that it begins with, its last operator, all of its operators in order."""


def omitted(case: Case, report: Report) -> bool:
    until = time.monotonic() + SECONDS
    a, b = case.outputs()
    for side, (program, rows, wanted) in enumerate(((case.a, case.shared.a, b), (case.b, case.shared.b, a))):
        name = case.names[side]
        for chain in _chains(program):
            if time.monotonic() > until:
                report.tried("steps left out, one chain of operators at a time", "not all were tried: out of time")
                return False
            step = _gives(program, chain, rows, wanted)
            if step is not None:
                return _said(case, report, name, program, chain, step)
    report.tried("steps left out, one chain of operators at a time", "none gives the other's bits")
    return False


def _said(case: Case, report: Report, name: str, program: Program, chain: Chain, step: tuple[Tensor, Tensor]) -> bool:
    _, last, numbers = chain
    words = ", ".join(dict.fromkeys(program.ops[n].name for n in numbers))
    report.tried(f"{name} without {words} (up to operator {last} of the region)", "the other side's bits")
    casts = [program.ops[n].name in CASTS for n in numbers]
    if all(casts) or (report.rounding and any(casts)) or _to_exponents(*step):
        said = f"{name} rounds in {words} (up to operator {last} of the region), the other side does not"
        return report.is_("precision", said)
    if not report.rounding:
        masks = all(program.ops[n].name.split(".")[1].rstrip("_") in MASKING for n in numbers)
        label = "post_processing" if case.kind == "logprob" else "layout_mask" if masks else "semantic"
        return report.is_(label, f"{name} does {words} (up to operator {last} of the region), the other side does not")
    return False


def _to_exponents(before: Tensor, after: Tensor) -> bool:
    """Scales as UE8M0 keeps them: each is a power of two, its own next or nearest one."""
    if not bool((before > 0).all()) or bool((torch.frexp(before).mantissa == 0.5).all()):
        return False
    ratio = after / before
    return bool((torch.frexp(after).mantissa == 0.5).all() and (ratio > 0.5).all() and (ratio < 2).all())


def _chains(program: Program) -> Iterator[Chain]:
    """Short ones first; of each, every beginning among the tensors that its operators read."""
    made = {name: number for number, op in enumerate(program.ops) for name in op.outs if name is not None}
    written = {name for op in program.ops for name in op.writes}
    for length in range(1, LONGEST + 1):
        for number, op in enumerate(program.ops):
            if len(op.outs) != 1 or op.outs[0] is None or op.outs[0] in written or not _computes(op):
                continue
            yield from ((start, number, path) for start, path in _back(program, made, number, length))


def _back(program: Program, made: dict[str, int], number: int, length: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name in dict.fromkeys(tensors_of(program.ops[number])):
        if length == 1:
            yield name, (number,)
        elif name in made:
            for start, path in _back(program, made, made[name], length - 1):
                yield start, (*path, number)


def _computes(op: Op) -> bool:
    return op.name.startswith("aten.") and not op.writes and op.name.split(".")[1].rstrip("_") not in VIEWS


def _gives(program: Program, chain: Chain, rows: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor] | None:
    """What the step is given and what it makes, if leaving it out gives `wanted`.

    Where the two tensors are of one shape; numbers, in the dtype that the rest of the program goes on with.
    """
    start, last, _ = chain
    out = program.ops[last].outs[0]
    step: list[tuple[Tensor, Tensor]] = []

    def put(number: int, op: Op, env: dict[str, Any]) -> None:
        if number != last or out is None:
            return
        before, after = env[start], env[out]
        if before.shape != after.shape or before.dtype == torch.bool or not after.is_floating_point():
            raise _Unlike
        env[out] = before.to(after.dtype)
        step.append((env[out], after))

    try:
        result = rows_of(home(program.run(hook=put)[program.output]), len(program.rows))
    except (_Unlike, RuntimeError, TypeError, KeyError, IndexError, AttributeError):
        return None
    same = result is not None and result.dtype == wanted.dtype and same_bits(result[rows], wanted)
    return step[0] if same and step else None


class _Unlike(Exception):
    """The chain cannot be left out."""
