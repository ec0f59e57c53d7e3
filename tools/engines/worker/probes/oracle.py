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
        found = None if made is None else made(program, inputs, output)
    except (RuntimeError, KeyError, IndexError, StopIteration, ValueError):
        return None
    return found if found is not None and found.value.shape == output.shape else None


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


def _rope(program: Program, inputs: dict[str, Tensor], output: Tensor) -> Truth:
    """Halves turned, by the table of cosines and sines that the program holds: [P, D], or one row a token each."""
    x = next(v for n, v in inputs.items() if v.shape[1] == output.shape[1] and v.is_floating_point()).to(torch.float64)
    own = str(program.notes["output"][1])
    x = next((v for n, v in inputs.items() if n.split(".", 1)[1] in (f"{own}_norm", f"{own}_proj")), x).to(
        torch.float64
    )
    positions = next(v for n, v in inputs.items() if n.endswith(".positions")).reshape(-1)
    table = next(v for v in _constants(program, 2) if v.shape[0] > int(positions.max())).to(torch.float64)
    cos, sin = (t.repeat(1, 2)[:, None] for t in table[positions].chunk(2, dim=1))
    heads = x.reshape(x.shape[0], -1, table.shape[1])
    low, high = heads.chunk(2, dim=-1)
    value = heads * cos + torch.cat([-high, low], -1) * sin
    magnitude = heads.abs() * cos.abs() + torch.cat([high, low], -1).abs() * sin.abs()
    bound = magnitude.reshape(x.shape) * 6 * _unit(output) + 1e-30
    return Truth(value.reshape(x.shape), bound, "x cos + rotate_half(x) sin")


HEADS = (16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256)


def _attention(program: Program, inputs: dict[str, Tensor], output: Tensor) -> Truth:
    """softmax(q k^T / sqrt(D)) v over a sequence's own earlier rows; the head size is the one that fits best."""
    keys, inputs, asked = _with_earlier(program, inputs)
    named = {name.split(".", 1)[1]: value.to(torch.float64) for name, value in inputs.items()}
    q, k, v = named["q"], named["k"], named["v"]
    if len(keys) != len(q) or len(asked) != len(output):
        raise ValueError("rows of others between")
    tries = [
        d for d in HEADS if q.shape[1] % d == 0 and k.shape[1] % d == 0 and q.shape[1] // d % (k.shape[1] // d) == 0
    ]
    made = [_attended(q, k, v, keys, size, output) for size in tries]
    found = [Truth(t.value[asked], t.bound[asked], t.formula) for t in made]
    return min(found, key=lambda t: float(errors(output, t).max()))


def _with_earlier(program: Program, inputs: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Keys and inputs of all rows that are attended to, and which of these are asked for: earlier rows of a program
    that was blanked (blank.py) are not compared, but read."""
    window = program.notes.get("window")
    if window is None:
        keys = torch.tensor([key for key in program.rows if key[0] >= 0])
        return keys, inputs, torch.arange(len(keys))
    places = [n for n, (owner, at) in enumerate(program.rows) if owner == window[0] and at < window[2]]
    keys = torch.tensor([program.rows[n] for n in places])
    given = {name: value.reshape(value.shape[0], -1)[places] for name, value in program.canonical.items()}
    return keys, given, torch.nonzero(keys[:, 1] >= window[1]).flatten()


def _attended(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, size: int, output: Tensor) -> Truth:
    group = q.shape[1] // k.shape[1]
    query, key, value = (t.reshape(t.shape[0], -1, size).transpose(0, 1) for t in (q, k, v))
    key, value = key.repeat_interleave(group, 0), value.repeat_interleave(group, 0)
    scores = query @ key.transpose(1, 2) * size**-0.5
    seen = (keys[:, None, 0] == keys[None, :, 0]) & (keys[None, :, 1] <= keys[:, None, 1])
    if bool((keys[:, 1] >= seen.sum(1)).any()):
        raise ValueError("earlier rows of the sequence are in a cache")
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    made, magnitude = weights @ value, weights @ value.abs()
    flat = [t.transpose(0, 1).reshape(q.shape[0], -1) for t in (made, magnitude)]
    # The exponential multiplies the rounding of the scores by their size; its result may be kept in the narrow dtype.
    unit = 4 * _unit(output) + (len(q) + float(scores.abs().max())) * 2.0**-24
    return Truth(flat[0], flat[1] * unit + 1e-30, f"softmax(q k^T / sqrt({size})) v")


def _embedding(program: Program, inputs: dict[str, Tensor], output: Tensor) -> Truth:
    ids = next(iter(inputs.values())).reshape(-1)
    value = next(t for t in _constants(program, 2) if t.shape[1] == output.shape[1])[ids].to(torch.float64)
    return Truth(value, value.abs() * _unit(output) + 1e-30, "table[id]")


def _routed(program: Program, inputs: dict[str, Tensor], output: Tensor) -> Truth:
    """As Qwen's and Mixtral's routers have it; a model that does not renormalise fits on neither side."""
    named = {name.split(".", 1)[1]: value for name, value in inputs.items()}
    scores = named["router_logits"].to(torch.float64).softmax(-1)
    picked = scores.gather(1, named["topk_ids"].to(torch.int64))
    value = picked / picked.sum(1, keepdim=True)
    return Truth(value, value.abs() * 16 * 2.0**-8 + 1e-30, "softmax(logits)[ids], renormalised")


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
    "rope": _rope,
    "attention": _attention,
    "embedding": _embedding,
    "topk": _routed,
}
"""Kinds whose formula engines share. A model of another (a window, a scale, pairs for halves) fits it on neither side,
and then nothing is said. Experts are held packed: no formula can be computed from their tables."""
