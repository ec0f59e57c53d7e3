"""The declared formulas in float64, and how far a rounded result may be from them.

A result within `bound` can be explained by rounding in some order and some precision; one far outside cannot. The bound
is the usual one for sums of products, gamma_n * sum |a_i b_i| with n the number of terms (Higham, Accuracy and
Stability of Numerical Algorithms, 3.1), plus the rounding of inputs and output to the storage dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .program import Program

UNIT = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24, torch.float64: 2.0**-53}


@dataclass(frozen=True)
class Truth:
    """value and bound, float64 [R, W]; formula: what was computed, for the evidence."""

    value: Tensor
    bound: Tensor
    formula: str


def truth(kind: str, program: Program, inputs: dict[str, Tensor], output: Tensor) -> Truth | None:
    """None where no formula is declared for this kind, or the program does not show what it needs."""
    made = _FORMULAS.get(kind)
    try:
        return None if made is None else made(program, inputs, output)
    except (RuntimeError, KeyError, IndexError, StopIteration, ValueError):
        return None


def errors(result: Tensor, truth_: Truth) -> Tensor:
    """|result - truth| as a multiple of the bound, largest of each row."""
    wrong = (result.to(torch.float64) - truth_.value).abs()
    return (wrong / truth_.bound.clamp(min=1e-300)).amax(dim=1)


def _unit(output: Tensor) -> float:
    return UNIT.get(output.dtype, 2.0**-24)


def _constants(program: Program, ndim: int) -> list[Tensor]:
    given = set(program.inputs.values())
    return [v for n, v in program.values.items() if n not in given and v.ndim == ndim and v.is_floating_point()]


def _linear(program: Program, inputs: dict[str, Tensor], output: Tensor) -> Truth:
    x = next(iter(inputs.values())).to(torch.float64)
    weight = next(w for w in _constants(program, 2) if x.shape[1] in w.shape).to(torch.float64)
    weight = weight if weight.shape[1] == x.shape[1] else weight.t()
    value, size = x @ weight.t(), x.shape[1]
    magnitude = x.abs() @ weight.abs().t()
    # A fused product holds more columns than the point: the ones that fit are found by where they start.
    start = _start(value, output)
    value, magnitude = (t[:, start : start + output.shape[1]] for t in (value, magnitude))
    return Truth(value, _bounded(magnitude, value, size, output), "x @ W^T")


def _start(value: Tensor, output: Tensor) -> int:
    width = output.shape[1]
    if value.shape[1] == width:
        return 0
    wanted = output.to(torch.float64)
    tries = range(0, value.shape[1] - width + 1, max(1, width // 64) if width > 64 else 1)
    return min(tries, key=lambda s: float((value[:, s : s + width] - wanted).abs().sum()))


def _bounded(magnitude: Tensor, value: Tensor, terms: int, output: Tensor) -> Tensor:
    sums = 2.0**-24 * terms
    return magnitude * sums / (1 - sums) + value.abs() * 2 * _unit(output) + 1e-30


def _add(program: Program, inputs: dict[str, Tensor], output: Tensor) -> Truth:
    parts = [t.to(torch.float64) for t in inputs.values()]
    value = torch.stack(parts).sum(0)
    return Truth(value, value.abs() * 2 * _unit(output) + 1e-30, "a + b")


def _norm(program: Program, inputs: dict[str, Tensor], output: Tensor) -> Truth:
    x = _normed(program, inputs).to(torch.float64)
    weight = next(iter(_constants(program, 1))).to(torch.float64)
    eps = _eps(program)
    grouped = x.reshape(x.shape[0], -1, weight.shape[0])
    value = (grouped * torch.rsqrt(grouped.pow(2).mean(-1, keepdim=True) + eps) * weight).reshape(x.shape)
    return Truth(value, value.abs() * 6 * _unit(output) + 1e-30, f"x * rsqrt(mean(x^2) + {eps:g}) * w")


def _normed(program: Program, inputs: dict[str, Tensor]) -> Tensor:
    """What is normed: a kernel that adds the residual first has the terms of the sum among its inputs."""
    layer, name = program.notes.get("output", (None, None))
    summed = {"attn_norm": f"{layer}.resid_pre", "mlp_norm": f"{layer}.resid_mid"}.get(str(name))
    sums = [t for n, t in inputs.items() if n == summed or (name == "final_norm" and n.endswith(".resid_post"))]
    return next(iter([*sums, *inputs.values()]))


def _eps(program: Program) -> float:
    for op in program.ops:
        for value in (*op.args, *op.kwargs.values()):
            if isinstance(value, float) and 0 < value < 1e-2:
                return value
    raise StopIteration


def _act(program: Program, inputs: dict[str, Tensor], output: Tensor) -> Truth:
    parts = [t.to(torch.float64) for t in inputs.values()]
    gate, up = parts if len(parts) == 2 else parts[0].chunk(2, dim=-1)
    value = torch.nn.functional.silu(gate) * up
    return Truth(value, value.abs() * 4 * _unit(output) + 1e-30, "silu(gate) * up")


def _residual(program: Program, inputs: dict[str, Tensor], output: Tensor) -> Truth:
    value = next(iter(inputs.values())).to(torch.float64)
    return Truth(value, value.abs() * _unit(output) + 1e-30, "x")


_FORMULAS: dict[str, Any] = {
    "linear": _linear,
    "router": _linear,
    "add": _add,
    "norm": _norm,
    "act": _act,
    "residual": _residual,
}
"""Kinds whose formula every engine shares. Attention, rope and experts depend on the model: no oracle is declared."""
