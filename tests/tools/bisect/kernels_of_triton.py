"""Triton kernels for the tests of their launches: they are imported again by name."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scaled_sum(x, y, out, count, factor, BLOCK: tl.constexpr, DTYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    made = tl.load(x + at, mask=inside).to(DTYPE) + tl.load(y + at, mask=inside).to(DTYPE) * factor
    tl.store(out + at, made, mask=inside)


@triton.jit
def multiplied(x, factor, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    tl.store(x + at, tl.load(x + at) * factor)


@triton.jit
def _tuned(x, out, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    tl.store(out + at, tl.load(x + at) * 5)


tuned = triton.autotune(configs=[triton.Config({"WIDTH": 16}, num_warps=2)], key=[])(_tuned)
