"""Tensors as files keep them: rows of zeros, which is what is left of rows that nobody needs, are not written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .rows import bits

LEAST = 1 << 12
"""Bytes from which on it is worth looking."""


def kept(tensor: Tensor) -> tuple[Tensor, list[list[int]] | None]:
    """The rows (along the last dimension) that are not all zero bits, and where they lie: [[start, end], …].

    None, and the tensor as it is, where that would not make it smaller by a quarter.
    """
    whole = tensor.detach().contiguous()
    if whole.ndim < 2 or whole.numel() * whole.element_size() < LEAST or not whole.shape[-1]:
        return whole, None
    rows = whole.reshape(-1, whole.shape[-1])
    filled = (bits(rows) != 0).any(dim=1)
    if int(filled.sum()) > 0.75 * len(rows):
        return whole, None
    padded = torch.cat([torch.zeros(1, dtype=torch.int8), filled.to(torch.int8), torch.zeros(1, dtype=torch.int8)])
    edges = torch.nonzero(padded.diff()).flatten().reshape(-1, 2)
    return rows[filled], edges.tolist()


def restored(part: Tensor, shape: Sequence[int], places: Any) -> Tensor:
    """What `kept` was given."""
    rows = torch.zeros(torch.Size(shape).numel() // shape[-1], shape[-1], dtype=part.dtype)
    at = 0
    for start, end in places:
        rows[start:end] = part[at : at + end - start]
        at += end - start
    return rows.reshape(list(shape))
