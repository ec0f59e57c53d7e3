"""128-bit hashes of rows: position-dependent, keyed by the row, equal on every device.

A cryptographic hash of every activation costs more than the forward, and xxh3 is not in the user's interpreter. This is
multilinear hashing instead: each row's 16-bit words times six columns of fixed random 22-bit numbers, summed exactly
(in float64 every partial sum stays below 2**53, so the order of summation cannot matter). Two different rows agree in
one column with probability at most 2**-22, in all six with 2**-132; six sums and the row's key are then mixed to 128
bits. XOR, norms and sums of values are blind to permutations, signs and zeros; this is not.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

COLUMNS = 6
WORDS = 1 << 16
"""Words a block: 2**15 (word) * 2**21 (multiplier) * 2**16 stays below 2**53."""
ROWS = 128
"""Rows at a time, so that their float64 copy stays in the cache."""
_MIX = np.random.default_rng(0x62697467).integers(1, 1 << 63, size=(2, COLUMNS + 3), dtype=np.uint64) | np.uint64(1)

Digests = "np.ndarray[Any, np.dtype[np.uint64]]"


def row_sums(tensor: Tensor) -> Tensor:
    """[R, ...] of any dtype -> float64 [R, blocks * 6], exact integers."""
    words = _words(tensor)
    parts = []
    for start in range(0, words.shape[1], WORDS):
        block = words[:, start : start + WORDS]
        numbers = _multipliers(start // WORDS, block.shape[1], str(words.device))
        pieces = [block[row : row + ROWS].to(torch.float64) @ numbers for row in range(0, block.shape[0], ROWS)]
        parts.append(torch.cat(pieces) if pieces else block.new_zeros((0, COLUMNS), dtype=torch.float64))
    return torch.cat(parts, dim=1) if parts else torch.zeros(words.shape[0], 0, dtype=torch.float64)


def digests(sums: np.ndarray[Any, Any], keys: np.ndarray[Any, Any], salt: int) -> Any:
    """Sums [R, 6n] and keys int64 [R, 2] -> uint64 [R, 2]. `salt` tells dtypes and widths apart."""
    whole = np.ascontiguousarray(sums, np.float64).astype(np.int64).view(np.uint64)
    out = np.zeros((len(keys), 2), np.uint64)
    with np.errstate(over="ignore"):
        for block in range(0, whole.shape[1] or COLUMNS, COLUMNS):
            part = whole[:, block : block + COLUMNS]
            columns = [part[:, i] for i in range(part.shape[1])]
            columns += [np.full(len(keys), salt + block, np.uint64), *(keys[:, i].astype(np.uint64) for i in (0, 1))]
            for lane in (0, 1):
                out[:, lane] = _mixed(out[:, lane], columns, lane)
    return out


def _mixed(state: Any, columns: list[Any], lane: int) -> Any:
    for number, column in enumerate(columns):
        state = (state ^ (column * _MIX[lane, number % (COLUMNS + 3)])) * np.uint64(0x9E3779B97F4A7C15)
        state = state ^ (state >> np.uint64(29))
    return state


def salt_of(tensor: Tensor) -> int:
    width = 1
    for size in tensor.shape[1:]:
        width *= int(size)
    code = sum(ord(letter) << (8 * (i % 4)) for i, letter in enumerate(str(tensor.dtype)))
    return (width << 32) ^ code


def _words(tensor: Tensor) -> Tensor:
    flat = tensor.detach().reshape(tensor.shape[0], -1).contiguous()
    if flat.dtype == torch.bool or flat.element_size() == 1:
        return flat.view(torch.uint8).to(torch.int16)
    return flat.view(torch.int16)


@lru_cache(maxsize=64)
def _multipliers(block: int, width: int, device: str) -> Tensor:
    drawn = np.random.default_rng([0xB17, block]).integers(-(1 << 21), 1 << 21, size=(WORDS, COLUMNS))
    return torch.from_numpy(drawn[:width].astype(np.float64)).to(device)
