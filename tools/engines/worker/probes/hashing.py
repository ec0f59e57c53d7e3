"""128-bit hashes of rows: position-dependent, keyed by the row, equal on every device.

A cryptographic hash of every activation costs more than the forward, and xxh3 is not in the user's interpreter. This is
multilinear hashing in two steps, each with its multipliers drawn once (SHAKE-256 of a label, so that every version of
every library draws the same) and independent of the data:

1. A row's bytes x, as int8 and in the order of its elements, times 16 columns of random int8: sums of x[i] * m[i, c],
   modulo 2**32. A product of int8 matrices is what CPUs and GPUs do fastest, and integers have no rounding: neither the
   order of summation nor threads, tiles and the other rows of the batch can matter. Let two different rows differ at
   byte i. For any choice of the other multipliers, the sums of column c agree for at most one of the 256 values of
   m[i, c], since the bytes' difference d is at most 255 and d * (m - m') = 0 modulo 2**32 needs m = m'. All 16 columns
   agree with probability at most 2**-128.
2. These 16 numbers, the row's key and the salt (22 words of 32 bits) times random 64-bit numbers, modulo 2**64, of
   which the upper 32 bits are kept; four such make 128 bits. This is strongly universal (Lemire and Kaser, "Strongly
   universal string hashing is fast", 2014): what differs agrees afterwards with probability at most 2**-128.

Two different rows of one key therefore have one digest with probability at most 2**-127, whatever the difference is:
XOR, norms and sums of values are blind to permutations, signs and zeros, and this is not. The bound is for data that
does not know the multipliers; nobody is defended against who picks activations in order to collide.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

COLUMNS = 16
WORDS = COLUMNS + 6
"""What the second step takes: the sums, two words each of sequence, position and salt."""
LEAST = 1 << 16
"""Rows of the smallest table of multipliers; larger ones are powers of two, so that few are kept."""
TILE = 16
"""cuBLASLt's int8 product wants sizes in multiples of 16, and more than 16 rows."""
BLOCK = 1 << 16
"""Bytes of a row at a time: no sum goes beyond 2**30, since GPUs do not wrap at 2**31 but saturate."""
ROWS = 128
"""Rows at a time where the product is made in float64: the copy then stays in the cache."""

Digests = "np.ndarray[Any, np.dtype[np.uint64]]"


def row_sums(tensor: Tensor) -> Tensor:
    """[R, …] of any dtype, any strides -> int32 [R, 16], on the tensor's device."""
    data = _bytes(tensor)
    if not data.numel():
        return torch.zeros(data.shape[0], COLUMNS, dtype=torch.int32, device=data.device)
    if _multiplies_int8(data.device.type):
        return _product(data)
    return _wide_product(data.cpu())


def digests(sums: np.ndarray[Any, Any], keys: np.ndarray[Any, Any], salt: int) -> Any:
    """Sums int32 [R, 16] and keys int64 [R, 2] -> uint64 [R, 2]. `salt` (64 bits) tells dtypes and widths apart."""
    words = np.empty((len(keys), WORDS), np.uint64)
    words[:, :COLUMNS] = np.ascontiguousarray(sums, np.int32).view(np.uint32)
    words[:, COLUMNS:] = np.ascontiguousarray(
        np.column_stack([keys.astype(np.int64).view(np.uint64), np.full(len(keys), salt, np.uint64)])
    ).view(np.uint32)
    multipliers, offsets = _second_step()
    kept = (words @ multipliers + offsets) >> np.uint64(32)
    return np.ascontiguousarray((kept[:, 0::2] << np.uint64(32)) | kept[:, 1::2])


def salt_of(tensor: Tensor) -> int:
    name = f"{tensor.dtype}[{math.prod(tensor.shape[1:])}]"
    return int.from_bytes(hashlib.shake_256(name.encode()).digest(8), "little")


def _bytes(tensor: Tensor) -> Tensor:
    """int8 [R, bytes of a row]; a copy only where a row's elements are not side by side."""
    width = math.prod(tensor.shape[1:])
    flat = tensor.detach().reshape(tensor.shape[0], width)
    if flat.numel() == 0:
        return torch.zeros(tensor.shape[0], 0, dtype=torch.int8, device=tensor.device)
    if flat.stride(1) != 1:
        flat = flat.contiguous()
    return flat.view(torch.int8)


def _product(data: Tensor) -> Tensor:
    rows, width = data.shape
    if data.device.type != "cpu":
        # Rows and bytes of zeros add nothing to any sum.
        short, narrow = (TILE - width % TILE) % TILE, max(0, 2 * TILE - rows)
        if short or narrow:
            data = torch.nn.functional.pad(data, (0, short, 0, narrow))
        elif data.data_ptr() % TILE or data.stride(0) % TILE:
            data = data.clone(memory_format=torch.contiguous_format)
    numbers = _multipliers(data.shape[1], data.device)
    total = torch._int_mm(data[:, :BLOCK], numbers[:BLOCK])
    for start in range(BLOCK, data.shape[1], BLOCK):
        total += torch._int_mm(data[:, start : start + BLOCK], numbers[start : start + BLOCK])
    return total[:rows]


def _wide_product(data: Tensor) -> Tensor:
    """The same integers in float64, exact below 2**53: for processors and versions of torch without the other."""
    total = torch.zeros(data.shape[0], COLUMNS, dtype=torch.int64)
    for start in range(0, data.shape[1], BLOCK):
        part = data[:, start : start + BLOCK]
        numbers = _multipliers(data.shape[1], data.device)[start : start + part.shape[1]].to(torch.float64)
        for row in range(0, data.shape[0], ROWS):
            total[row : row + ROWS] += (part[row : row + ROWS].to(torch.float64) @ numbers).to(torch.int64)
    return total.to(torch.int32)


@lru_cache(maxsize=8)
def _multiplies_int8(device: str) -> bool:
    """Whether torch's int8 product is exact here. Some processors saturate sums of two products to 16 bits."""
    if not hasattr(torch, "_int_mm") or device not in ("cpu", "cuda"):
        return False
    data = torch.full((2 * TILE, BLOCK), -128, dtype=torch.int8, device="cpu")
    # Extremes of either sign, the largest sum there is, and ordinary bytes.
    data[1], data[2, ::2] = 127, 127
    data[3] = torch.arange(BLOCK, device="cpu").mul_(89).to(torch.int8)
    extreme = torch.full((COLUMNS, BLOCK), -128, dtype=torch.int8, device="cpu").t()
    try:
        made = _product(data.to(device)).cpu(), torch._int_mm(data.to(device), extreme.to(device)).cpu()
    except (RuntimeError, NotImplementedError):
        return False
    sums = data.to(torch.int64).sum(dim=1, keepdim=True) * -128
    return torch.equal(made[0], _wide_product(data)) and bool((made[1] == sums).all())


def _multipliers(width: int, device: torch.device) -> Tensor:
    """int8 [width, 16]: row i for byte i, however wide the row is. Columns lie together, as GPUs want it."""
    return _table(max(LEAST, 1 << (width - 1).bit_length()), str(device)).t()[:width]


@lru_cache(maxsize=16)
def _table(rows: int, device: str) -> Tensor:
    drawn = bytearray(hashlib.shake_256(b"bitgate: bytes of a row").digest(rows * COLUMNS))
    return torch.frombuffer(drawn, dtype=torch.int8).reshape(rows, COLUMNS).t().contiguous().to(device)


@lru_cache(maxsize=1)
def _second_step() -> tuple[Any, Any]:
    drawn = hashlib.shake_256(b"bitgate: sums, key and salt").digest((WORDS + 1) * 4 * 8)
    numbers = np.frombuffer(drawn, "<u8").astype(np.uint64).reshape(WORDS + 1, 4)
    return numbers[:WORDS], numbers[WORDS]
