"""One cast changed at a time: does a program then give the other side's bits?

Three kinds: a rounding to a narrow dtype left out, a rounding added after a wide result, a narrow operation computed
wide. What a changed program computes after that follows torch's own promotion; the last result is rounded to the
dtype that the point has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .products import PRODUCTS, SUMS
from .program import Op, Program, call, decoded, function, materialised
from .rows import rows_of, same_bits

NARROW = (torch.bfloat16, torch.float16)
CASTS = ("aten._to_copy.default", "aten.to.dtype", "aten.to.dtype_layout")
VIEWS = ("view", "reshape", "slice", "split", "transpose", "unsqueeze", "squeeze", "detach", "alias", "t", "permute",
         "expand", "chunk", "select", "clone", "_unsafe_view", "empty", "zeros", "new_zeros", "cat", "contiguous",
         "split_with_sizes", "new_empty", "lift_fresh")  # fmt: skip


@dataclass(frozen=True)
class Toggle:
    number: int
    kind: str
    op: str
    dtype: str

    def said(self) -> str:
        words = {
            "late": f"the rounding in {self.op} left out",
            "early": f"a rounding to {self.dtype} added after {self.op}",
            "wide": f"{self.op} computed in float32 instead of {self.dtype}",
        }
        return f"{words[self.kind]} (operator {self.number} of the region)"


def operators(program: Program) -> list[tuple[int, Op]]:
    """The operators that compute, without views and allocations."""
    return [(n, op) for n, op in enumerate(program.ops) if op.name.split(".")[1].rstrip("_") not in VIEWS]


def explaining(
    program: Program, wanted: Tensor, rows: Tensor, overrides: dict[str, Tensor] | None = None
) -> list[Toggle]:
    """Every single toggle of `program` after which the rows at `rows` have exactly the bits `wanted` [R, W]."""
    narrow = _narrow_of(program, wanted)
    found = []
    for toggle in _toggles(program, narrow):
        result = changed(program, toggle, wanted.dtype, overrides)
        if result is None:
            continue
        canonical = rows_of(result, len(program.rows))
        if canonical is not None and same_bits(canonical[rows], wanted):
            found.append(toggle)
    return found


def _narrow_of(program: Program, wanted: Tensor) -> torch.dtype:
    candidates = [wanted.dtype, program.expected.dtype, *(v.dtype for v in program.values.values())]
    return next((dtype for dtype in candidates if dtype in NARROW), torch.bfloat16)


def _toggles(program: Program, narrow: torch.dtype) -> Iterator[Toggle]:
    text = str(narrow).removeprefix("torch.")
    for number, op in operators(program):
        if not op.name.startswith("aten.") or op.writes:
            continue
        if op.name in CASTS:
            yield Toggle(number, "late", op.name, text)
        yield Toggle(number, "early", op.name, text)
        # A wide product or sum is another kernel with an order of its own, not one cast.
        if op.name not in (*CASTS, *PRODUCTS, *SUMS):
            yield Toggle(number, "wide", op.name, text)


def changed(
    program: Program, toggle: Toggle, dtype: torch.dtype, overrides: dict[str, Tensor] | None = None
) -> Tensor | None:
    """The output with one toggle, rounded to `dtype`; None when the changed program cannot run."""
    env: dict[str, Any] = {n: materialised(n, program, (overrides or {}).get(n, v)) for n, v in program.values.items()}
    try:
        with torch.no_grad():
            for number, op in enumerate(program.ops):
                if number != toggle.number:
                    _tolerant(op, env)
                else:
                    _toggled(op, env, toggle)
            result = env[program.output]
            return result.to(dtype) if isinstance(result, Tensor) else None
    except (RuntimeError, TypeError, KeyError, IndexError, AttributeError):
        return None


def _toggled(op: Op, env: dict[str, Any], toggle: Toggle) -> None:
    if toggle.kind == "early":
        _tolerant(op, env)
        for name in op.outs:
            value = env.get(name) if name else None
            if isinstance(value, Tensor) and value.is_floating_point():
                env[name] = value.to(getattr(torch, toggle.dtype)).to(torch.float32)  # type: ignore[index]
        return
    args = [_wide(a) for a in decoded(op.args, env)]
    if toggle.kind == "late":
        result = args[0] if isinstance(args[0], Tensor) else None
    else:
        result = function(op.name)(*args, **{k: _wide(v) for k, v in decoded_kwargs(op, env).items()})
    outs = result if isinstance(result, tuple | list) else [result]
    for name, value in zip(op.outs, outs, strict=False):
        if name is not None:
            env[name] = value


def decoded_kwargs(op: Op, env: dict[str, Any]) -> dict[str, Any]:
    return {name: decoded(value, env) for name, value in op.kwargs.items()}


def _tolerant(op: Op, env: dict[str, Any]) -> None:
    """As recorded; a product whose factors have become unlike is computed in the wider of their dtypes."""
    try:
        call(op, env)
    except RuntimeError:
        widened = {n: _wide(v) for n, v in env.items() if isinstance(v, Tensor)}
        call(op, wider := {**env, **widened})
        for name in op.outs:
            if name is not None:
                env[name] = wider[name]


def _wide(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype in NARROW:
        return value.to(torch.float32)
    return [_wide(item) for item in value] if isinstance(value, list) else value
