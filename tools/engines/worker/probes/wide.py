"""Programs with every cast taken out, in one wide dtype. In float64: do two compute the same function at all?

Where they agree there, what differs is rounding; where they do not, no order and no cast explains it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .program import ONEDNN, Op, Program, decoded, function
from .rows import rows_of
from .toggles import CASTS

SAME = 1e-9
"""Relative to the largest value of the row; float64 rounding in a region stays far below."""
BITS = ("aten.view.dtype",)
"""Bits taken for another type's, as where a mantissa is cut by hand: in a wider dtype they are others."""
MAKING = ("empty", "zeros", "ones", "full", "arange", "new_zeros", "new_empty", "new_full", "new_ones", "scalar_tensor")


def computed_in(program: Program, dtype: torch.dtype) -> Tensor | None:
    """The output rows, everything computed in `dtype`; None when the program holds kernels of which only their bits are
    known. oneDNN's product is its own kernel in float32, and torch's in float64: there only the function counts."""
    if reads_bits(program) or any(not op.name.startswith("aten.") and op.name != ONEDNN for op in program.ops):
        return None
    env: dict[str, Any] = {name: _wide(value.clone(), dtype) for name, value in program.values.items()}
    try:
        with torch.no_grad():
            for op in program.ops:
                _run(op, env, dtype)
        return rows_of(env[program.output], len(program.rows))
    except (RuntimeError, TypeError, KeyError, IndexError):
        return None


def reads_bits(program: Program) -> bool:
    return any(op.name in BITS for op in program.ops)


def apart(a: Tensor, b: Tensor) -> float:
    """Largest difference relative to the row's largest value."""
    if a.shape != b.shape:
        return float("inf")
    scale = torch.maximum(a.abs().amax(dim=1), b.abs().amax(dim=1)).clamp(min=1e-300)
    return float(((a - b).abs().amax(dim=1) / scale).max())


def _run(op: Op, env: dict[str, Any], wide: torch.dtype) -> None:
    args = decoded(op.args, env)
    kwargs = {name: _dtype(decoded(value, env), wide) for name, value in op.kwargs.items()}
    if op.name == ONEDNN:
        out, x, bias, weight = args
        out.copy_(_product(x, weight, wide) if bias is None else _product(x, weight, wide) + bias)
        return
    if op.name in CASTS:
        given = [a for a in (*args[1:], *kwargs.values()) if isinstance(a, torch.dtype)]
        if all(dtype.is_floating_point for dtype in given) and isinstance(args[0], Tensor):
            env[op.outs[0] or ""] = args[0].to(wide) if args[0].is_floating_point() or given else args[0]
            return
    result = function(op.name)(*[_dtype(a, wide) for a in args], **kwargs)
    outs = result if isinstance(result, tuple | list) else [result]
    for name, value in zip(op.outs, outs, strict=False):
        if name is not None:
            env[name] = _wide(value, wide) if op.name.split(".")[1] in MAKING else value


def _product(x: Tensor, weight: Tensor, wide: torch.dtype) -> Tensor:
    if wide == torch.float64:
        return x @ weight.t()
    from vllm import _custom_ops as ops

    made: Tensor = ops.onednn_mm(ops.create_onednn_mm(weight.contiguous().t(), 32), x, None)
    return made


def _dtype(value: Any, wide: torch.dtype) -> Any:
    return wide if isinstance(value, torch.dtype) and value.is_floating_point else value


def _wide(value: Any, wide: torch.dtype) -> Any:
    return value.to(wide) if isinstance(value, Tensor) and value.is_floating_point() else value
