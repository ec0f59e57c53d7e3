"""Every operator's backward, and whole models', against float64 formulas; and the same with faults planted."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from shared import GENERATOR, checkpoint, equal, model_of, ours, sequences, stack_of, table, visible

# isort: split
# torch comes after `shared`, which sets the variables that vLLM reads.
import torch
from torch import Tensor
from torch.nn import functional as F

gradients, reference = ours("kernels.gradients"), ours("kernels.reference")
MODULES = [ours(f"kernels.{name}") for name in ("attention", "dense", "logprob", "moe")]

Case = tuple[Callable[..., Any], Callable[..., Any], dict[str, Tensor]]


# Every row of the table against a formula written here.


def norm64(x: Tensor, weight: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6) * weight


def rotate64(x: Tensor) -> Tensor:
    length, half = len(x), 32
    angles = torch.arange(length, dtype=torch.float64)[:, None] * 10000.0 ** (
        -torch.arange(half, dtype=torch.float64) / half
    )
    a, b = x.view(length, -1, 2 * half).split(half, -1)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)


def attention64(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out = []
    for first, last in ((0, 20), (20, 33)):
        heads = [t[first:last].view(last - first, -1, 64).transpose(0, 1) for t in (q, k, v)]
        heads[1:] = [t.repeat_interleave(2, 0) for t in heads[1:]]
        out.append(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(0, 1).reshape(last - first, -1))
    return torch.cat(out)


def experts64(ids: Tensor, x: Tensor, shares: Tensor, *w: Tensor) -> Tensor:
    def one(token: int, slot: int) -> Tensor:
        gate, up, down = w[3 * int(ids[token, slot]) : 3 * int(ids[token, slot]) + 3]
        return shares[token, slot] * (down @ (F.silu(gate @ x[token]) * (up @ x[token])))

    return torch.stack([one(t, 0) + one(t, 1) for t in range(len(x))])


def cases(path: Path, dtype: torch.dtype) -> dict[str, Case]:
    """operator -> (it, its formula, inputs)."""

    def make(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(*shape, generator=GENERATOR) * scale).to(dtype)

    ops = table.Operators(stack_of(path, dtype=str(dtype).removeprefix("torch.")))
    norm, linear, biased = ops.open("rms_norm", size=128, eps=1e-6), ops.open("linear"), ops.open("linear")
    rope, silu = ops.open("rotary_embedding", head_dim=64), ops.open("silu_and_mul")
    attention = ops.open("attention", heads=4, kv_heads=2, head_dim=64, scale=0.125)
    router = ops.open("router", experts=8, top_k=2, renormalise=True)
    plain_router = ops.open("router", experts=8, top_k=2, renormalise=False)
    experts = ops.open("experts", experts=4, top_k=2, hidden=128, intermediate=64)
    logprob, embedding = ops.open("logprob"), ops.open("embedding")
    tokens, positions = torch.randint(0, 500, (33,), generator=GENERATOR), torch.arange(33)
    ids = torch.stack([torch.randperm(4, generator=GENERATOR)[:2] for _ in range(33)]).int()
    hidden, logits, batch = make(33, 128), make(33, 8), attention.pack([20, 13])
    names = [f"{part}{e}" for e in range(4) for part in ("gate", "up", "down")]
    masters = {name: make(*((128, 64) if "down" in name else (64, 128)), scale=0.1) for name in names}
    picked = router(hidden, logits)[1].long()
    return {
        "embedding": (lambda w: embedding(tokens, w, "w"), lambda w: w[tokens], {"w": make(500, 128)}),
        "rms_norm": (lambda x, w: norm(x, w, "w"), norm64, {"x": make(33, 128), "w": make(128)}),
        # Where eps is as large as the mean square, so that a derivative with another eps shows.
        "rms_norm_of_small_rows": (
            lambda x, w: norm(x, w, "w"),
            norm64,
            {"x": make(33, 128, scale=1e-3), "w": make(128)},
        ),
        "fused_add_rms_norm": (
            lambda x, r, w: norm.add(x, r, w, "w"),
            lambda x, r, w: (norm64(x + r, w), x + r),
            {"x": make(33, 128), "r": make(33, 128), "w": make(128)},
        ),
        "linear": (
            lambda x, a, b: linear(x, [a, b], ["a", "b"]),
            lambda x, a, b: torch.cat([x @ a.T, x @ b.T], -1),
            {"x": make(33, 128), "a": make(64, 128), "b": make(96, 128)},
        ),
        "linear_bias": (
            lambda x, a, c: biased(x, [a], ["a", "c"], [c]),
            lambda x, a, c: x @ a.T + c,
            {"x": make(33, 128), "a": make(64, 128), "c": make(64)},
        ),
        "rotary_embedding": (
            lambda q, k: rope(positions, q, k),
            lambda q, k: (rotate64(q), rotate64(k)),
            {"q": make(33, 256), "k": make(33, 128)},
        ),
        "attention": (
            lambda q, k, v: attention(batch, q, k, v),
            attention64,
            {"q": make(33, 256), "k": make(33, 128), "v": make(33, 128)},
        ),
        "silu_and_mul": (silu, lambda x: F.silu(x[:, :64]) * x[:, 64:], {"x": make(33, 128)}),
        "router": (lambda x: router(hidden, x), lambda x: x.gather(-1, picked).softmax(-1), {"logits": logits}),
        "router_plain": (
            lambda x: plain_router(hidden, x),
            lambda x: x.softmax(-1).gather(-1, picked),
            {"logits": logits},
        ),
        "experts": (
            lambda x, s, *w: experts(x, s, ids, w, names),
            lambda x, s, *w: experts64(ids, x, s, *w),
            {"x": hidden, "shares": torch.rand(33, 2, generator=GENERATOR), **masters},
        ),
        "logprob": (
            lambda x: logprob(x, tokens),
            lambda x: torch.log_softmax(x, -1).gather(-1, tokens[:, None])[:, 0],
            {"logits": make(33, 500)},
        ),
    }


def vjps(path: Path) -> dict[str, Any]:
    """Right, in both dtypes; and with each fault, in float32, where the bound is narrow enough to see all of them."""
    narrow, wide = cases(path, torch.bfloat16), cases(path, torch.float32)
    return {
        "bfloat16": {name: report(gradients.check_vjp(*case)) for name, case in narrow.items()},
        "float32": {name: report(gradients.check_vjp(*case)) for name, case in wide.items()},
        "one_percent": {name: faulty(case, one_percent)["verdict"] for name, case in wide.items()},
        "faults": {name: faulty(wide[operator], change) for name, (operator, change) in FAULTS.items()},
        "other_eps": other_eps(wide),
    }


def report(check: Any) -> dict[str, Any]:
    worst = check.worst.relative_error
    return {"verdict": check.verdict, "worst": worst, "bound": check.bound, "wrong": [p.detail for p in check.wrong]}


# Faults in the backward behind a right forward.

Change = Callable[[Sequence[Tensor | None], Sequence[Tensor | None]], Sequence[Tensor | None]]


@contextlib.contextmanager
def backward_changed(change: Change, place: str = "") -> Iterator[None]:
    """Inside, operators at places that begin with `place` return `change(their gradients, the incoming ones)`."""

    def changed(call: Any, *tensors: Tensor) -> Any:
        if not call.where.startswith(place):
            return visible.visible(call, *tensors)

        def vjp(saved: Any, grads: Any, needs: Any) -> Any:
            return change(call.vjp(saved, grads, needs), grads)

        return visible.visible(dataclasses.replace(call, vjp=vjp), *tensors)

    for module in MODULES:
        module.visible = changed
    try:
        yield
    finally:
        for module in MODULES:
            module.visible = visible.visible


def faulty(case: Case, change: Change) -> dict[str, Any]:
    with backward_changed(change):
        return report(gradients.check_vjp(*case))


def one_percent(found: Sequence[Tensor | None], _: Any) -> list[Tensor | None]:
    return [None if grad is None else grad * 1.01 for grad in found]


def without_column(number: int) -> Change:
    return lambda found, _: [found[0].index_fill(-1, torch.tensor([number]), 0.0)]  # type: ignore[union-attr]


def replaced(number: int, by: Callable[[Tensor], Tensor]) -> Change:
    return lambda found, _: [by(g) if i == number else g for i, g in enumerate(found)]  # type: ignore[arg-type]


FAULTS: dict[str, tuple[str, Change]] = {
    "rope_missing_for_the_keys": ("rotary_embedding", lambda found, incoming: [found[0], incoming[1]]),
    "router_drops_one_expert": ("router", without_column(3)),
    "router_plain_drops_one_expert": ("router_plain", without_column(3)),
    "experts_share_not_differentiated": ("experts", replaced(1, torch.zeros_like)),
    "one_experts_gate_half": ("experts", replaced(3 + 3 * 2, lambda grad: grad / 2)),
    "attention_forgets_the_last_key": ("attention", replaced(1, lambda grad: F.pad(grad[:-1], (0, 0, 0, 1)))),
    "embedding_rows_shifted": ("embedding", replaced(1, lambda grad: grad.roll(1, 0))),
    "norm_weight_from_one_row_less": ("rms_norm", replaced(1, lambda grad: grad * 32 / 33)),
}


def other_eps(wide: dict[str, Case]) -> dict[str, Any]:
    """The derivative of a norm with ten times the eps."""
    real = MODULES[1].RmsNorm._graph

    def graph(self: Any, x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 10 * self._eps) * weight

    MODULES[1].RmsNorm._graph = graph
    try:
        names = ("rms_norm", "rms_norm_of_small_rows", "fused_add_rms_norm")
        return {name: report(gradients.check_vjp(*wide[name])) for name in names}
    finally:
        MODULES[1].RmsNorm._graph = real


# Whole models.


def whole_model(path: Path) -> dict[str, Any]:
    """The model's gradient in both dtypes; recomputation; a wider master."""
    model, given = model_of(path), sequences()
    logprobs = model(given)
    logprobs.sum().backward()
    grads = {name: p.grad for name, p in model.named_masters()}
    return {
        "bfloat16": report(checked(path, "bfloat16")),
        "float32": report(checked(path, "float32")),
        **recomputed(path, given, logprobs, grads),
    }


def one_percent_in_one_place(path: Path) -> dict[str, Any]:
    """Of all operators of a model, one projection of one layer has a gradient that is 1 % too large."""
    with backward_changed(one_percent, "linear(model.layers.2.self_attn.o_proj"):
        return report(checked(path, "float32"))


def checked(path: Path, dtype: str) -> Any:
    model, given = model_of(path, dtype=dtype), sequences()
    model(given).sum().backward()
    grads = {name: p.grad for name, p in model.named_masters()}
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    exact = {name: p.detach().double().requires_grad_(True) for name, p in model.named_masters()}
    lengths = [len(s) for s in given]
    layers = [layer.mlp.chosen for layer in model.model.layers if hasattr(layer.mlp, "chosen")]
    routing = [[ids.split(lengths)[i] for ids in layers] for i in range(len(given))] if layers else []
    reference.reference_logprobs(config, exact, given, routing).sum().backward()
    wanted = {name: w.grad if w.grad is not None else torch.zeros_like(w) for name, w in exact.items()}
    count = config["num_hidden_layers"]
    sums = gradients.model_accumulations(
        count, width=config["intermediate_size"], tokens=sum(lengths), vocab=config["vocab_size"]
    )
    bound = gradients.rounding_bound(model.dtype, gradients.model_roundings(count), accumulations=sums)
    return gradients.check_gradients(grads, wanted, bound=bound)


def recomputed(path: Path, given: list[Tensor], logprobs: Tensor, grads: dict[str, Tensor]) -> dict[str, Any]:
    model = model_of(path, recompute=True)
    model.train()
    again = model(given)
    again.sum().backward()
    wide = model_of(path, master_dtype=torch.float32)
    widest = wide(given)
    widest.sum().backward()
    return {
        "recompute_equal": equal(again, logprobs),
        "recompute_gradients_equal": all(torch.equal(p.grad, grads[name]) for name, p in model.named_masters()),
        "float32_master_equal": equal(widest, logprobs),
        "float32_master_gradients": {str(p.grad.dtype) for _, p in wide.named_masters()} == {"torch.float32"},
        "float32_master_exports": {str(t.dtype) for t in checkpoint.exported(wide).values()} == {"torch.bfloat16"},
    }
