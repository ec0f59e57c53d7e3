"""The output columns, cut to those around the first that differs: of a product's weight only these rows are written, of
attention only one group of heads.

Kernels choose by the number of columns too, so both programs must give the kept columns the bits that they had.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from .group import one_group
from .program import Op, Program, tensors_of
from .rows import bits, rows_of, same_bits
from .shrink import only_torch, resized
from .thin import thinned

FEWEST, STEP = 64, 4
LEAST = 1 << 16
"""Bytes of a constant from which on it is worth cutting."""


def narrowed(a: Program, row_a: int, b: Program, row_b: int) -> tuple[Program, Program]:
    """Both programs with fewer output columns, the first differing ones among them; where that fails with as many, and
    zeros in what only the others need."""
    left, right = _row(a, row_a), _row(b, row_b)
    if left is None or right is None or left.shape != right.shape:
        return a, b
    width, differs = len(left), _differing(left, right)
    if differs is None:
        return a, b
    groups = one_group(a, differs), one_group(b, differs)
    if groups[0] is not None and groups[1] is not None and groups[0][1] == groups[1][1]:
        kept = groups[0][1]
        if _gives(groups[0][0], row_a, left[kept]) and _gives(groups[1][0], row_b, right[kept]):
            return groups[0][0], groups[1][0]
    size = FEWEST
    while size < width:
        start = min(differs // size * size, width - size)
        kept = slice(start, start + size)
        cut_a, cut_b = _cut(a, row_a, left, kept), _cut(b, row_b, right, kept)
        if cut_a is not None and cut_b is not None:
            return cut_a, cut_b
        size *= STEP
    kept = slice(differs // FEWEST * FEWEST, min(differs // FEWEST * FEWEST + FEWEST, width))
    return (
        thinned(a, lambda cut: _gives(cut, row_a, left[kept], kept), LEAST),
        thinned(b, lambda cut: _gives(cut, row_b, right[kept], kept), LEAST),
    )


def _cut(program: Program, row: int, wanted: Tensor, kept: slice) -> Program | None:
    for name, axis in _candidates(program, len(wanted)):
        cut = _with_columns(program, name, axis, len(wanted), kept)
        if _gives(cut, row, wanted[kept]):
            return cut
    return None


def _gives(cut: Program, row: int, wanted: Tensor, kept: slice = slice(None)) -> bool:
    found = _row(cut, row)
    return found is not None and same_bits(found[kept], wanted)


def _candidates(program: Program, width: int) -> Iterator[tuple[str, int]]:
    """Large constants of two dimensions of which one is the output's, and which of the two it is.

    Kernels that are not torch's do not check sizes: of what they read, only a packed weight's outputs can be cut.
    """
    for name, value in program.values.items():
        large = value.ndim == 2 and value.numel() * value.element_size() >= LEAST
        if not large or name in program.inputs.values():
            continue
        handler = name in program.notes.get("handlers", {})
        if handler or only_torch(_touched(program, name)[0]):
            yield from ((name, axis) for axis in ((0,) if handler else (0, 1)) if value.shape[axis] == width)


def _touched(program: Program, name: str) -> tuple[list[Op], set[str]]:
    """The operators that read the constant or what is made of it, and the tensors that these make."""
    touched, ops = {name}, []
    for op in program.ops:
        if touched & set(tensors_of(op)):
            touched |= _made(op)
            ops.append(op)
    return ops, touched


def _with_columns(program: Program, name: str, axis: int, width: int, kept: slice) -> Program:
    """The constant cut along `axis`, and sizes in what is made of it."""
    value, size = program.values[name], kept.stop - kept.start
    values = {**program.values, name: _copied(value.narrow(axis, kept.start, size), value)}
    readers, touched = _touched(program, name)
    read = {tensor for op in readers for tensor in tensors_of(op)}
    # A bias beside the weight.
    values |= {n: v[kept] for n, v in values.items() if n in read and v.shape == (width,)}
    ops = [replace(op, args=resized(op.args, width, size)) if touched & _made(op) else op for op in program.ops]
    handlers = dict(program.notes.get("handlers", {}))
    if name in handlers:
        handlers[name] = [size if n == width else n for n in handlers[name]]
    return replace(program, ops=ops, values=values, notes={**program.notes, "handlers": handlers})


def _made(op: Op) -> set[str]:
    return {out for out in op.outs if out is not None} | set(op.writes)


def _copied(part: Tensor, whole: Tensor) -> Tensor:
    """Elements in the same order as before: kernels choose by the strides."""
    return part.contiguous() if whole.is_contiguous() else part.t().contiguous().t()


def _row(program: Program, row: int) -> Tensor | None:
    try:
        found = rows_of(program.result(), len(program.rows))
    except (RuntimeError, IndexError, TypeError, ValueError, KeyError):
        return None
    return None if found is None else found[row].detach().clone()


def _differing(a: Tensor, b: Tensor) -> int | None:
    """The first element with other bits."""
    if a.dtype != b.dtype:
        return 0
    unequal = (bits(a[:, None]) != bits(b[:, None])).any(dim=1)
    return int(torch.nonzero(unequal)[0]) if bool(unequal.any()) else None
