"""Run by the engine's interpreter: public bug reports of this kind, rebuilt from their descriptions, and neighbours.

Each is two ways to compute one operator; what the product's experiments say of them is printed as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from bitgate.tools.engines.worker.probes.classify import classify
from bitgate.tools.engines.worker.probes.experiments.case import Case
from bitgate.tools.engines.worker.probes.program import Program
from bitgate.tools.engines.worker.probes.rows import Shared
from bitgate.tools.engines.worker.probes.tracer import Tracer

ROWS = 12
Run = Callable[..., Any]


def traced(run: Run, given: dict[str, Any], constants: tuple[Any, ...]) -> Program:
    tracer = Tracer()
    points = [(0, name) for name in given]
    with torch.no_grad(), tracer:
        for point, value in zip(points, given.values(), strict=True):
            tracer.mark(point, value, value)
        made = run(*given.values(), *constants)
        tracer.mark((0, "out"), made, made)
    program = tracer.program(points, (0, "out"), torch.tensor([[0, n] for n in range(ROWS)]).numpy())
    assert program is not None
    return program


def said(
    kind: str, a: Run, b: Run, given: dict[str, Any], *constants: Any, other: tuple[Any, ...] | None = None
) -> Any:
    programs = traced(a, given, constants), traced(b, given, constants if other is None else other)
    index = torch.arange(ROWS)
    report = classify(Case(kind, *programs, Shared(index, index, 0), False))
    return {"class": report.label, "mechanism": report.mechanism, "tried": report.experiments}


def norm(x: Any, weight: Any, *, late: bool) -> Any:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (weight.float() * wide).to(x.dtype) if late else weight * wide.to(x.dtype)


def silu(gate: Any, up: Any, *, early: bool) -> Any:
    if early:
        return F.silu(gate) * up
    return (F.silu(gate.float()) * up.float()).to(gate.dtype)


def rope(x: Any, positions: Any, inv_freq: Any) -> Any:
    angle = positions.float()[:, None] * inv_freq
    cos, sin = torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()
    half = x.shape[-1] // 2
    turned = torch.cat([-x[:, half:], x[:, :half]], -1)
    return (x * cos + turned * sin).to(x.dtype)


def mrope(x: Any, positions: Any, sections: list[int]) -> Any:
    inv_freq = 1.0 / 10000 ** (torch.arange(0, 32) / 32)
    angle = positions.float()[:, sections] * inv_freq
    return x[:, :32] * angle.cos() - x[:, 32:] * angle.sin()


def logprob(logits: Any, tokens: Any, *, lanes: int = 0, temperature: float = 1.0) -> Any:
    wide = F.pad(logits.float(), (0, lanes)) / temperature
    return wide.log_softmax(-1).gather(-1, tokens)


def chunked(x: Any, decay: Any, size: int) -> Any:
    """A linear recurrence y_t = a_t y_(t-1) + x_t by chunks: products of decays inside, one carried state between."""
    out, state = [], torch.zeros(x.shape[1])
    for start in range(0, x.shape[0], size):
        a, part = decay[start : start + size].log().cumsum(0), x[start : start + size]
        gain = (a[:, None] - a[None]).exp().tril()
        out.append(gain @ part + a.exp()[:, None] * state)
        state = out[-1][-1]
    return torch.cat(out)


def quantised(x: Any, *, power_of_two: bool) -> Any:
    scale = x.abs().amax(-1, keepdim=True) / 448.0
    scale = torch.exp2(scale.log2().ceil()) if power_of_two else scale
    return (x / scale).clamp(-448, 448).round() * scale


def permuted(x: Any, weight: Any) -> Any:
    order = torch.arange(x.shape[1] - 1, -1, -1)
    return x[:, order] @ weight[:, order].t()


def main() -> None:
    torch.manual_seed(0)
    bf = torch.bfloat16
    x = torch.randn(ROWS, 256).to(bf)
    gate, up = torch.randn(ROWS, 256).to(bf), torch.randn(ROWS, 256).to(bf)
    weight = (1 + 0.3 * torch.randn(256)).to(bf)
    wide, square = torch.randn(ROWS, 256), torch.randn(64, 256)
    mix, streams = torch.randn(4, 4), torch.randn(ROWS, 4)
    q, positions = torch.randn(ROWS, 64), torch.arange(3000, 3000 + ROWS)
    inv_freq = 1.0 / 10000 ** (torch.arange(0, 32) / 32)
    logits, tokens = torch.randn(ROWS, 500), torch.randint(0, 500, (ROWS, 1))
    three = torch.stack([positions, positions // 7, positions % 7], 1)
    plain = [n % 3 for n in range(32)]
    decay = torch.rand(ROWS) * 0.5 + 0.4
    states = torch.randn(ROWS, 8)
    first = torch.tensor([[1.0, 2.0, 2.0, 0.5]]).repeat(ROWS, 1)
    results = {
        "1 norm casts before the weight": said(
            "norm", lambda x, w: norm(x, w, late=False), lambda x, w: norm(x, w, late=True), {"x": x}, weight
        ),
        "2 gate as bmm with another order": said("router", lambda x, w: x @ w.t(), permuted, {"x": wide}, square),
        "3 scan by chunks and by steps": said(
            "own", lambda x, a: chunked(x, a, 4), lambda x, a: chunked(x, a, 1), {"x": states}, decay
        ),
        "10 mix not transposed": said("own", lambda x, m: x @ m, lambda x, m: x @ m.t(), {"x": streams}, mix),
        "11 padded lanes": said("logprob", logprob, lambda y, t: logprob(y, t, lanes=128), {"logits": logits}, tokens),
        "11 temperature": said(
            "logprob", logprob, lambda y, t: logprob(y, t, temperature=0.7), {"logits": logits}, tokens
        ),
        "15 inv_freq rounded": said(
            "rope", rope, rope, {"x": q, "positions": positions}, inv_freq, other=(inv_freq.to(bf).float(),)
        ),
        "16 mrope sections permuted": said(
            "rope",
            lambda x, p: mrope(x, p, plain),
            lambda x, p: mrope(x, p, sorted(plain)),
            {"x": q, "positions": three},
        ),
        "30 scales as powers of two": said(
            "own", lambda x: quantised(x, power_of_two=False), lambda x: quantised(x, power_of_two=True), {"x": wide}
        ),
        "34 silu rounded early": said(
            "act", lambda g, u: silu(g, u, early=True), lambda g, u: silu(g, u, early=False), {"gate": gate, "up": up}
        ),
        "tie broken the other way": said(
            "topk", lambda s: s.topk(1).indices, lambda s: 3 - s.flip(-1).topk(1).indices, {"router_logits": first}
        ),
        "scale of two per cent": said(
            "linear", lambda x, w: x @ w.t(), lambda x, w: x @ (w * 1.02).t(), {"x": wide}, square
        ),
        "one weight of another value": said(
            "linear", F.linear, F.linear, {"x": wide}, square, other=(square + (torch.arange(256) == 7) * 0.01,)
        ),
    }
    sys.stdout.write(json.dumps(results, allow_nan=False))


if __name__ == "__main__":
    main()
