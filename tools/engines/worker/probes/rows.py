"""Rows of two programs that belong to the same token, and comparing them by their bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .program import Program

NOBODY, UNSCORED = -1, -2
"""In the place of a row's sequence: padding, which nothing may read; a token whose output is not asked for."""


@dataclass(frozen=True)
class Shared:
    """Indices of the common rows in either program, and which of them is the row under suspicion."""

    a: Tensor
    b: Tensor
    target: int


def own_rows(program: Program) -> list[int]:
    """Rows that somebody asked for and that are as the engine had them: blanked ones (blank.py) are not."""
    owner, start, end = program.notes.get("window", (None, 0, 0))
    return [
        n for n, (of, at) in enumerate(program.rows) if of >= 0 and (owner is None or of == owner and start <= at < end)
    ]


def shared_rows(a: Program, b: Program, sequence: int, position: int) -> Shared:
    theirs = {tuple(b.rows[n]): n for n in own_rows(b)}
    pairs = [(n, theirs[key]) for n in own_rows(a) if (key := tuple(a.rows[n])) in theirs]
    target = next((i for i, (n, _) in enumerate(pairs) if a.rows[n] == [sequence, position]), -1)
    return Shared(torch.tensor([n for n, _ in pairs]), torch.tensor([m for _, m in pairs]), target)


def rows_of(value: Any, count: int) -> Tensor | None:
    """[count, rest] when the tensor's leading sizes are the rows; None when it is of another kind."""
    if not isinstance(value, Tensor) or value.ndim == 0 or value.numel() == 0:
        return None
    if value.shape[0] == count:
        return value.reshape(count, -1)
    if value.ndim > 2 and value.shape[0] * value.shape[1] == count:
        return value.reshape(count, -1)
    if value.shape[0] > count and value.ndim == 2:
        # Padding behind the rows: tiles, graphs.
        return value[:count]
    return None


def bits(value: Tensor) -> Tensor:
    """[R, W] -> [R, bytes]."""
    flat = value.detach().contiguous()
    return flat.view(torch.uint8).reshape(flat.shape[0], -1)


def differing(a: Tensor, b: Tensor) -> Tensor:
    """Which rows have other bits; all of them where dtype or width differ."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return torch.ones(a.shape[0], dtype=torch.bool)
    return (bits(a) != bits(b)).any(dim=1)


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bool((bits(a.reshape(1, -1)) == bits(b.reshape(1, -1))).all())


def same_values(a: Tensor, b: Tensor) -> bool:
    """Equal as numbers: zeros of either sign, and NaN with whatever payload, count as the same."""
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def gives(program: Program, wanted: Tensor, places: Sequence[int] | slice = slice(None)) -> bool:
    """Whether a program that was changed still runs, and gives these rows the bits `wanted` [R, W]."""
    try:
        result = rows_of(program.result(), len(program.rows))
    except (RuntimeError, IndexError, TypeError, ValueError, KeyError):
        return False
    return result is not None and same_bits(result[places], wanted)
