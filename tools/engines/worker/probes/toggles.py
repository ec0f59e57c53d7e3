"""One cast changed at a time, or two together: does a program then give the other side's bits?

Three kinds: a rounding to a narrow dtype left out, a rounding added after a wide result, a narrow operation computed
wide. What a changed program computes after that follows torch's own promotion; the last result is rounded to the
dtype that the point has.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .gpu import home
from .products import PRODUCTS, SUMS
from .program import Op, Program, call, decoded, function, materialised, tensors_of
from .rows import rows_of, same_bits

NARROW = (torch.bfloat16, torch.float16)
CASTS = ("aten._to_copy.default", "aten.to.dtype", "aten.to.dtype_layout")
KINDS = ("late", "early", "read", "wide", "power")
LARGEST = ("amax", "max", "aminmax", "linalg_vector_norm")
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
            "read": f"the first input of {self.op} rounded to {self.dtype}, for it alone",
            "wide": f"{self.op} computed in float32 instead of {self.dtype}",
            "power": f"what {self.op} gives rounded up to a power of two (UE8M0)",
        }
        return f"{words[self.kind]} (operator {self.number} of the region)"


def operators(program: Program) -> list[tuple[int, Op]]:
    """The operators that compute, without views and allocations."""
    return [(n, op) for n, op in enumerate(program.ops) if op.name.split(".")[1].rstrip("_") not in VIEWS]


def explaining(program: Program, wanted: Tensor, rows: Tensor, kinds: Sequence[str] = KINDS) -> list[Toggle]:
    """Every single toggle of `program` after which the rows at `rows` have exactly the bits `wanted` [R, W]."""
    every = _toggles(program, _narrow_of(program, wanted))
    return [toggle for toggle in every if toggle.kind in kinds and _gives((toggle,), program, wanted, rows)]


def explaining_two(program: Program, wanted: Tensor, rows: Tensor, seconds: float) -> tuple[Toggle, Toggle] | None:
    """Two toggles of different operators that give the rows the bits `wanted` only together; tried for `seconds`."""
    until = time.monotonic() + seconds
    for first, second in itertools.combinations(_toggles(program, _narrow_of(program, wanted)), 2):
        if time.monotonic() > until:
            return None
        if first.number != second.number and _gives((first, second), program, wanted, rows):
            return first, second
    return None


def _gives(toggles: Sequence[Toggle], program: Program, wanted: Tensor, rows: Tensor) -> bool:
    result = changed(program, toggles, wanted.dtype)
    canonical = None if result is None else rows_of(result, len(program.rows))
    return canonical is not None and same_bits(canonical[rows], wanted)


def _narrow_of(program: Program, wanted: Tensor) -> torch.dtype:
    candidates = [wanted.dtype, program.expected.dtype, *(v.dtype for v in program.values.values())]
    return next((dtype for dtype in candidates if dtype in NARROW), torch.bfloat16)


def _toggles(program: Program, narrow: torch.dtype) -> Iterator[Toggle]:
    text = str(narrow).removeprefix("torch.")
    wide = doubled(program)
    scales = _scales(program)
    for number, op in operators(program):
        if not op.name.startswith("aten.") or op.writes:
            continue
        if op.name in CASTS:
            yield Toggle(number, "late", op.name, text)
        if wide:
            yield Toggle(number, "early", op.name, "float32")
        yield Toggle(number, "early", op.name, text)
        yield Toggle(number, "read", op.name, text)
        # A wide product or sum is another kernel with an order of its own, not one cast.
        if op.name not in (*CASTS, *PRODUCTS, *SUMS):
            yield Toggle(number, "wide", op.name, text)
        if scales & {name for name in op.outs if name is not None}:
            yield Toggle(number, "power", op.name, text)


def doubled(program: Program) -> bool:
    """Something is computed in float64."""
    given = [value for op in program.ops for value in (*op.args, *op.kwargs.values())]
    return {"dtype": "float64"} in given or any(v.dtype == torch.float64 for v in program.values.values())


def _scales(program: Program) -> set[str]:
    """What is made of a largest value and of nothing else: a total that ends as a power of two is no scale."""
    found: set[str] = set()
    single = {n for n, v in program.values.items() if v.numel() == 1 and n not in program.inputs.values()}
    for op in program.ops:
        given = [name for name in tensors_of(op) if name not in single]
        if op.name.split(".")[1] in LARGEST or (given and set(given) <= found):
            found.update(name for name in op.outs if name is not None)
    return found


def changed(program: Program, toggles: Sequence[Toggle], dtype: torch.dtype) -> Tensor | None:
    """The output with these toggles, rounded to `dtype`; None when the changed program cannot run."""
    toggled = {toggle.number: toggle for toggle in toggles}
    env: dict[str, Any] = {n: materialised(n, program, v) for n, v in program.values.items()}
    try:
        with torch.no_grad():
            for number, op in enumerate(program.ops):
                if number in toggled:
                    _toggled(op, env, toggled[number])
                else:
                    _tolerant(op, env)
            result = home(env[program.output])
            return result.to(dtype) if isinstance(result, Tensor) else None
    except (RuntimeError, TypeError, KeyError, IndexError, AttributeError):
        return None


def _toggled(op: Op, env: dict[str, Any], toggle: Toggle) -> None:
    if toggle.kind == "power":
        _scaled(op, env)
        return
    if toggle.kind == "early":
        _tolerant(op, env)
        for name in op.outs:
            value = env.get(name) if name else None
            if isinstance(value, Tensor) and value.is_floating_point():
                env[name] = _narrowed(value, toggle.dtype)  # type: ignore[index]
        return
    args = [_wide(a) for a in decoded(op.args, env)]
    if toggle.kind in ("wide", "late") and not _has_narrow(decoded(op.args, env), op, env):
        raise TypeError("nothing narrow to change: only another run")
    if toggle.kind == "read":
        args[0] = _rounded(decoded(op.args, env)[0], getattr(torch, toggle.dtype))
    if toggle.kind == "late":
        result = args[0] if isinstance(args[0], Tensor) else None
    else:
        result = function(op.name)(*args, **{k: _wide(v) for k, v in decoded_kwargs(op, env).items()})
    outs = result if isinstance(result, tuple | list) else [result]
    for name, value in zip(op.outs, outs, strict=False):
        if name is not None:
            env[name] = value


def _narrowed(value: Tensor, dtype: str) -> Tensor:
    """Wide again after the rounding, as torch's own operators have it; float64 rounded to float32 stays that."""
    wide = torch.float32 if dtype == "float32" or value.dtype != torch.float64 else torch.float64
    return value.to(getattr(torch, dtype)).to(wide)


def _has_narrow(args: list[Any], op: Op, env: dict[str, Any]) -> bool:
    """A narrow tensor that it reads, or a narrow dtype that it casts to."""
    given = [*args, *decoded_kwargs(op, env).values()]
    flat = [item for value in given for item in (value if isinstance(value, list) else [value])]
    return any(v in NARROW if isinstance(v, torch.dtype) else getattr(v, "dtype", None) in NARROW for v in flat)


def _rounded(value: Any, dtype: torch.dtype) -> Tensor:
    """A wide tensor with the values that `dtype` has."""
    if not isinstance(value, Tensor) or value.dtype not in (torch.float32, torch.float64):
        raise TypeError("nothing to round")
    return value.to(dtype).to(value.dtype)


def _scaled(op: Op, env: dict[str, Any]) -> None:
    """Scales, fewer than the values that they belong to, as quantised formats keep them: exponents alone."""
    call(op, env)
    largest = max(v.numel() for v in env.values() if isinstance(v, Tensor))
    for name in op.outs:
        value = env.get(name) if name else None
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.numel() * 4 > largest:
            raise TypeError("not a scale")
        if not bool((value > 0).all()):
            raise TypeError("no scale: of what is not positive only NaN would come out")
        env[name] = torch.exp2(value.log2().ceil())  # type: ignore[index]


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
