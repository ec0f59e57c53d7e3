"""Scales of quantised rows in one form, float32 [rows, groups], whatever layout the kernel wanted them in.

An exponent byte e (UE8M0) stands for 2^(e - 127), 255 for NaN; both are exact in float32, so that nothing is lost.
"""

from __future__ import annotations

import torch
from torch import Tensor

LAYOUTS = {
    "rows": "[R, groups] of floats, or of exponent bytes",
    "transposed": "[groups, R or more], rows last and padded (TMA, mn-major)",
    "packed": "int32 [R, groups / 4], four exponent bytes each, the first the lowest",
    "packed_transposed": "int32 [groups / 4, R or more]",
}


def canonical(scales: Tensor, layout: str, rows: int, groups: int) -> Tensor:
    """Raises ValueError when the layout is not known or the shape is not of it."""
    if layout not in LAYOUTS:
        raise ValueError(f"layout: got {layout!r}; allowed are {', '.join(LAYOUTS)}")
    held = scales.t() if layout.endswith("transposed") else scales
    held = held[:rows]
    if layout.startswith("packed"):
        if held.dtype != torch.int32:
            raise ValueError(f"layout {layout}: got scales of {scales.dtype}; allowed is {LAYOUTS[layout]}")
        held = held.contiguous().view(torch.uint8)[:, :groups]
    if tuple(held.shape) != (rows, groups):
        raise ValueError(f"layout {layout}: got shape {list(scales.shape)}; allowed is {LAYOUTS[layout]}")
    return _widened(held)


def _widened(held: Tensor) -> Tensor:
    if held.element_size() > 1:
        return held.to(torch.float32)
    exponents = held.contiguous().view(torch.uint8).to(torch.int64)
    powers = torch.ldexp(torch.ones_like(exponents, dtype=torch.float64), exponents - 127).to(torch.float32)
    return torch.where(exponents == 255, torch.full_like(powers, float("nan")), powers)
