"""Making a program smaller while it still shows the same failure: fewer rows first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .launches import LAUNCH
from .program import Op, Program

Fails = Callable[[Program], bool]
SPANNING = ("cpu_attention", "causal_conv1d", "chunk_gated_delta_rule", "fused_sigmoid_gating_delta_rule")
"""vLLM's operators that are told where sequences begin and end: with fewer rows they would read beyond them."""


def with_rows(program: Program, rows: list[int]) -> Program | None:
    """The same operators on these rows alone; None where rows are no leading dimension of what is read."""
    count = len(program.rows)
    if count < 2 or any(_fixed(op) for op in program.ops):
        return None
    if not only_torch(program.ops) and _ambiguous(program, count):
        return None
    index = torch.tensor(rows)
    values = {n: _picked(v, count, index) for n, v in program.values.items()}
    ops = [Op(op.name, resized(op.args, count, len(rows)), op.kwargs, op.outs, op.writes) for op in program.ops]
    expected = program.expected[index]
    canonical = {n: t[index] for n, t in program.canonical.items()}
    kept = [program.rows[r] for r in rows]
    return Program(ops, program.inputs, program.output, values, expected, kept, program.notes, canonical)


def _fixed(op: Op) -> bool:
    """A grid and the sizes beside it are for so many rows, and which of them say so is not known."""
    return op.name.startswith(LAUNCH) or op.name.split(".")[1].startswith(SPANNING)


def only_torch(ops: Sequence[Op]) -> bool:
    """torch refuses sizes that do not fit; other kernels read and write beyond a tensor's end, or end the process."""
    return all(op.name.startswith("aten.") for op in ops)


def _ambiguous(program: Program, count: int) -> bool:
    """Some size that is not the number of rows happens to be the same number, and would be cut as if it were."""
    shapes = [list(value.shape) for value in program.values.values()]
    given = [arg for op in program.ops for arg in op.args if isinstance(arg, list)]
    inner = [size for sizes in (*shapes, *given) for size in sizes[2 if sizes[:1] == [1] and len(sizes) > 2 else 1 :]]
    return count in inner or any(count in sizes for sizes in program.notes.get("handlers", {}).values())


def _picked(value: Tensor, count: int, index: Tensor) -> Tensor:
    if value.ndim and value.shape[0] == count:
        return value[index]
    if value.ndim > 2 and value.shape[0] == 1 and value.shape[1] == count:
        return value[:, index]
    return value


def resized(args: Any, count: int, size: int) -> Any:
    """Sizes of views and allocations that are the number of rows."""
    return [
        [size if item == count and not isinstance(item, bool) else item for item in arg]
        if isinstance(arg, list) and all(isinstance(item, int) for item in arg)
        else arg
        for arg in args
    ]


def fewest_rows(program: Program, target: int, fails: Fails) -> tuple[Program, int]:
    """Halves the rows around `target` while `fails` holds; returns the program and the target's new place."""
    rows = list(range(len(program.rows)))
    best, place = program, target
    size = len(rows)
    while size > 1:
        size = (size + 1) // 2
        start = min(max(0, target - size // 2), len(rows) - size)
        tried = None
        # Kernels choose by the count of rows and where the row lies in a tile: both ends are tried.
        for begin in dict.fromkeys((start, max(0, target - size + 1), target)):
            window = rows[begin : begin + size]
            if target not in window or len(window) != size:
                continue
            cut = with_rows(program, window)
            if cut is not None and _holds(fails, cut):
                tried = (cut, window.index(target))
                break
        if tried is None:
            break
        best, place = tried
        if size == 1:
            break
    return best, place


def _holds(fails: Fails, program: Program) -> bool:
    try:
        return fails(program)
    except (RuntimeError, IndexError, TypeError, ValueError, KeyError):
        return False
