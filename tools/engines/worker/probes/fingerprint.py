"""Accumulation-order fingerprints of matrix products and sums, after FPRev (RepDL tools/FPRev).

With a huge value at place i, its negative at place j and small units elsewhere, the result counts the units that were
added after the two had cancelled: what is added before is swallowed. That number is the size of what lies outside of
the smallest subtree of the summation that holds both; all pairs give the whole tree. Pairs (0, j) and (j, j + 1) are
probed here, enough to tell two orders apart. Every output column is a probe of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def huge(dtype: torch.dtype) -> float:
    """Swallows units in a float32 accumulator, and is finite in `dtype`."""
    return 2.0**15 if dtype == torch.float16 else 2.0**60


def unit(dtype: torch.dtype) -> float:
    """What is counted: single ones are lost beside `huge`."""
    return 2.0**-10 if dtype == torch.float16 else 1.0


COUNTABLE = {torch.bfloat16: 128, torch.float16: 1024, torch.float32: 1 << 22}
"""Units that the output dtype counts exactly."""
PROBES = 2048

Product = Callable[[Tensor, Tensor], Tensor]
"""(x [M, K], W [N, K]) -> [M, N]."""


def product_order(run: Product, rows: int, row: int, size: int, columns: int, dtype: torch.dtype) -> dict[str, Any]:
    """The fingerprint of row `row` of a product of `rows` x `size` by `size` x `columns`.

    Returns `order` (a short hash), `blocks` (how many values the count takes) and the number of probes.
    """
    unit_places = _units(size, dtype)
    every = pairs(size, PROBES // 2)
    x = torch.ones(rows, size, dtype=dtype)
    counts: list[int] = []
    for start in range(0, len(every), columns):
        chosen = every[start : start + columns]
        weights = torch.zeros(columns, size, dtype=dtype)
        for number, (i, j) in enumerate(chosen):
            weights[number, unit_places] = unit(dtype)
            weights[number, i], weights[number, j] = huge(dtype), -huge(dtype)
        result = run(x, weights)
        seen = result[row, : len(chosen)].to(torch.float64) / unit(dtype)
        counts += [int(v) if v == v and abs(v) < 1 << 30 else -1 for v in seen.tolist()]
    return described(counts, len(every))


def sum_order(run: Callable[[Tensor], Tensor], shape: tuple[int, int], row: int, dtype: torch.dtype) -> dict[str, Any]:
    """The fingerprint of a sum over the last dimension of [rows, size] (a mean counts in `size`-ths)."""
    rows, size = shape
    every = pairs(size, PROBES // 4)
    counts: list[int] = []
    for i, j in every:
        x = torch.full((rows, size), unit(dtype), dtype=dtype)
        x[:, i], x[:, j] = huge(dtype), -huge(dtype)
        value = float(run(x).reshape(rows, -1)[row, 0].to(torch.float64)) / unit(dtype)
        counts.append(round(value * 1024) if value == value and abs(value) < 1 << 30 else -1)
    return described(counts, len(every))


def input_order(run: Callable[[Tensor], Tensor], size: int, dtype: torch.dtype) -> dict[str, Any]:
    """The fingerprint of `run(x [size])`, a sum over x in whatever order; its first value is looked at."""
    every = pairs(size, PROBES // 4)
    places = _units(size, dtype)
    counts: list[int] = []
    for i, j in every:
        x = torch.zeros(size, dtype=dtype)
        x[places] = unit(dtype)
        x[i], x[j] = huge(dtype), -huge(dtype)
        value = float(run(x).reshape(-1)[0].to(torch.float64)) / unit(dtype)
        counts.append(int(value) if value == value and abs(value) < 1 << 30 else -1)
    return described(counts, len(every))


def described(counts: list[int], probes: int) -> dict[str, Any]:
    """`order`: a short hash of the counts; `levels`: how many values they take, one tells nothing."""
    text = ",".join(map(str, counts))
    return {
        "order": hashlib.sha256(text.encode()).hexdigest()[:12],
        "levels": len(set(counts)),
        "probes": probes,
        "seen": counts[:8],
    }


def _units(size: int, dtype: torch.dtype) -> Tensor:
    limit = COUNTABLE.get(dtype, 128)
    return torch.arange(size) if size <= limit else torch.arange(0, size, -(-size // limit))


def pairs(size: int, most: int) -> list[tuple[int, int]]:
    """(0, j) and (j, j + 1) in turn, at most `most` of them, over the whole size: a part of it may hold no seam.

    The step is odd, so that every lane of a vector comes up.
    """
    step = max(1, -(-2 * size // most) | 1) if 2 * size > most else 1
    far = [(0, j) for j in range(1, size, step)]
    near = [(j, j + 1) for j in range(1, size - 1, step)]
    return [pair for both in zip(far, near, strict=False) for pair in both] or far
