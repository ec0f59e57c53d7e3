"""Integers and masks that a region makes or holds: does one side's in the place of the other's explain the difference?

Positions shifted inside an operator, a block table of another request, a mask with a window: the inputs at the region's
edge are equal, and so are the weights. What no float went into is taken from one program and put into the other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..gpu import home
from ..program import Op, Program, tensors_of
from ..rows import differing, rows_of, same_bits
from .case import Case, Report

TRIES = 64


def layout(case: Case, report: Report) -> bool:
    if case.kind == "topk":
        # Indices are what it computes: routing.py looks at them.
        return False
    names = case.names
    tried = 0
    for giver, taker in ((0, 1), (1, 0)):
        programs = (case.a, case.b)
        held, own = (_integers(programs[side]) for side in (giver, taker))
        for name, value in own.items():
            for other in held.values():
                if tried >= TRIES or not _comparable(value, other):
                    continue
                tried += 1
                if _gives(case, giver, taker, name, other):
                    what = "mask" if value.dtype == torch.bool else "integers"
                    shape = f"{what} of shape {list(value.shape)}"
                    report.tried(f"{names[taker]} with the {shape} of {names[giver]}", f"the bits of {names[giver]}")
                    return report.is_("layout_mask", f"{shape} inside the operator are others on one side")
    report.tried("integers and masks inside, exchanged one at a time", f"{tried} differ, none explains it")
    return False


def _comparable(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and not torch.equal(a, b)


def _gives(case: Case, giver: int, taker: int, name: str, value: Tensor) -> bool:
    """At one row that differs: of several sequences each may have a mask of its own."""
    program, rows = ((case.a, case.shared.a), (case.b, case.shared.b))[taker]
    result = rows_of(_with(program, name, value), len(program.rows))
    if result is None:
        return False
    unlike = torch.nonzero(differing(*case.outputs())).flatten().tolist()
    at = case.shared.target if case.shared.target in unlike else unlike[0]
    return same_bits(result[rows][at], case.outputs()[giver][at])


def _with(program: Program, name: str, value: Tensor) -> Any:
    def put(number: int, op: Op, env: dict[str, Any]) -> None:
        if name in op.outs:
            env[name] = value.to(env[name].device, copy=True)

    try:
        if name in program.values:
            # An engine's one tensor may be kept more than once: the plan of attention has its own copy of the lengths.
            own = program.values[name]
            alike = [n for n, v in program.values.items() if v.dtype == own.dtype and torch.equal(v, own)]
            return program.result(dict.fromkeys(alike, value))
        return program.run(hook=put)[program.output]
    except (RuntimeError, IndexError, ValueError):
        return None


def _feature_indices(op: Op) -> list[str]:
    """Indices into another dimension than the first: they choose components of a row, not rows, places or a mask.

    That the sides take other components is a fact about their formulas, of which either may be the wrong one.
    """
    if op.name != "aten.index.Tensor" or not isinstance(op.args[1], list):
        return []
    chosen = [entry["t"] for entry in op.args[1] if isinstance(entry, dict)]
    return chosen if op.args[1][:1] == [None] else []


def _integers(program: Program) -> dict[str, Tensor]:
    """Integer and boolean tensors that depend on no float and that an operator reads beside floats, by name."""
    floats = {n for n, v in program.values.items() if v.is_floating_point()}
    handlers = program.notes.get("handlers", {})
    features = {name for op in program.ops for name in _feature_indices(op)}
    found = {n: v for n, v in program.values.items() if n not in floats | set(handlers) | features and v.numel() > 1}
    read: set[str] = set()

    def look(number: int, op: Op, env: dict[str, Any]) -> None:
        given = tensors_of(op)
        made = {n: env[n] for n in op.outs if n is not None and isinstance(env.get(n), Tensor)}
        tainted = any(name in floats for name in given)
        if tainted or any(value.is_floating_point() for value in made.values()):
            read.update(given)
        for name, value in made.items():
            if tainted or value.is_floating_point():
                floats.add(name)
            elif value.numel() > 1 and name not in features and op.name.startswith("aten."):
                # What a kernel of its own makes may be no integers: vLLM's plan of attention holds pointers.
                found[name] = home(value).clone()

    program.run(hook=look)
    return {name: value for name, value in found.items() if name in read}
