"""Weights of which few output columns are needed, where they cannot be cut: fused with others, or read by a kernel that
takes another way for fewer columns. What the kept columns do not need becomes zeros, which a repro's file leaves out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from .program import Program

PARTS, FEWEST = 32, 16
"""No part of a weight smaller than a 32nd of its rows, or 16 rows, is tried."""

Gives = Callable[[Program], bool]


def thinned(program: Program, gives: Gives, least: int) -> Program:
    """The program with zeros in its constants of two dimensions and at least so many bytes, while `gives` holds."""
    for name, value in list(program.values.items()):
        if value.ndim == 2 and value.numel() * value.element_size() >= least and name not in program.inputs.values():
            smallest = max(FEWEST, len(value) // PARTS)
            program = _without(program, name, 0, len(value), smallest, gives)
    return program


def _without(program: Program, name: str, start: int, end: int, smallest: int, gives: Gives) -> Program:
    """Halves, and halves of those that are needed."""
    made = replace(program, values={**program.values, name: _zeroed(program.values[name], start, end)})
    if gives(made):
        return made
    if end - start <= smallest:
        return program
    middle = (start + end) // 2
    program = _without(program, name, start, middle, smallest, gives)
    return _without(program, name, middle, end, smallest, gives)


def _zeroed(value: Tensor, start: int, end: int) -> Tensor:
    made = value.clone()
    made[start:end] = 0
    return made
