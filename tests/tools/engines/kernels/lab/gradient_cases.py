"""Gradients that are wrong in known ways, put before the check. Torch alone. Usage: gradient_cases.py REPORT.json"""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

WORKER = Path(__file__).resolve().parents[5] / "tools/engines/worker"
for name, folder in (("bitgate_worker", WORKER), ("bitgate_worker.kernels", WORKER / "kernels")):
    package = types.ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package
gradients = importlib.import_module("bitgate_worker.kernels.gradients")

HIDDEN, VOCAB, EXPERTS = 16, 40, 3


class LyingBackward(torch.autograd.Function):
    """The value of `right`, the derivative of `wrong`."""

    @staticmethod
    def forward(ctx, right, wrong, *tensors):  # type: ignore[no-untyped-def]
        ctx.wrong = wrong
        ctx.save_for_backward(*tensors)
        return right(*tensors)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_(True) for t in ctx.saved_tensors]
            out = ctx.wrong(*leaves)
        found = torch.autograd.grad(out, leaves, grad.to(out.dtype), allow_unused=True)
        return None, None, *found


def lying(right, wrong):  # type: ignore[no-untyped-def]
    return lambda *tensors: LyingBackward.apply(right, wrong, *tensors)


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def norm_without_projection(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6).detach() * weight


def linear(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight.T


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float = HIDDEN**-0.5) -> Tensor:
    scores = q @ k.T * scale
    later = torch.ones(scores.shape, dtype=torch.bool).triu(1)
    return scores.masked_fill(later, float("-inf")).softmax(-1) @ v


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def log_softmax(logits: Tensor) -> Tensor:
    return torch.log_softmax(logits, -1)


OPS: dict[str, Any] = {
    "embed": lambda ids, weight: weight[ids],
    "norm": norm,
    "linear": linear,
    "attend": attend,
    "residual": lambda x, y: x + y,
    "swiglu": swiglu,
    "router": lambda logits: torch.softmax(logits, -1),
    "log_softmax": log_softmax,
    "reduce": lambda rows: rows.mean(),
}


def parameters() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def make(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * 0.4

    square = {name: make(HIDDEN, HIDDEN) for name in ("q", "k", "v", "o")}
    experts = {f"{part}{e}": make(HIDDEN, HIDDEN) for e in range(EXPERTS) for part in ("gate", "up", "down")}
    norms = {name: 1 + make(HIDDEN) / 4 for name in ("norm1", "norm2", "norm3")}
    return {
        "embed": make(VOCAB, HIDDEN),
        "head": make(VOCAB, HIDDEN),
        "router": make(EXPERTS, HIDDEN),
        **square,
        **experts,
        **norms,
    }


def loss(p: dict[str, Tensor], ids: Tensor, faults: dict[str, Any]) -> Tensor:
    """One decoder layer with a softly routed feed-forward, in the parameters' dtype."""
    op = {**OPS, **faults}
    x = op["embed"](ids, p["embed"])
    h = op["norm"](x, p["norm1"])
    q, k, v = (op["linear"](h, p[name]) for name in "qkv")
    x = op["residual"](x, op["linear"](op["attend"](q, k, v), p["o"]))
    h = op["norm"](x, p["norm2"])
    shares = op["router"](op["linear"](h, p["router"]))
    parts = [
        shares[:, e : e + 1]
        * op["linear"](op["swiglu"](op["linear"](h, p[f"gate{e}"]), op["linear"](h, p[f"up{e}"])), p[f"down{e}"])
        for e in range(EXPERTS)
    ]
    x = op["residual"](x, sum(parts))
    logits = op["linear"](op["norm"](x, p["norm3"]), p["head"])
    logprobs = op["log_softmax"](logits)[:-1].gather(-1, ids[1:, None])
    return -op["reduce"](logprobs)


def transposed_weight(x: Tensor, weight: Tensor) -> Tensor:
    return LyingTranspose.apply(x, weight) if weight.shape[0] == weight.shape[1] else linear(x, weight)


class LyingTranspose(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        x, weight = ctx.saved_tensors
        return grad @ weight, x.T @ grad


FAULTS: dict[str, dict[str, Any]] = {
    "right": {},
    "log_softmax_with_identity_backward": {"log_softmax": lying(log_softmax, lambda x: x)},
    "attention_backward_without_scale": {"attend": lying(attend, lambda q, k, v: attend(q, k, v, 1.0))},
    "gate_branch_detached": {"swiglu": lambda g, u: F.silu(g).detach() * u},
    "weight_gradient_transposed": {"linear": transposed_weight},
    "router_detached": {"router": lambda x: torch.softmax(x, -1).detach()},
    "router_gradient_silently_zero": {"router": lying(OPS["router"], lambda x: torch.softmax(x, -1) * 0)},
    "norm_derivative_without_projection": {"norm": lying(norm, norm_without_projection)},
    "residual_counted_twice_in_backward": {"residual": lying(lambda x, y: x + y, lambda x, y: 2 * x + y)},
    "residual_dropped_in_backward": {"residual": lying(lambda x, y: x + y, lambda x, y: y)},
    "silu_derivative_is_sigmoid": {"swiglu": lying(swiglu, lambda g, u: g * torch.sigmoid(g).detach() * u)},
    "sign_flipped": {"log_softmax": lying(log_softmax, lambda x: -log_softmax(x))},
    "mean_differentiated_as_sum": {"reduce": lying(lambda r: r.mean(), lambda r: r.sum())},
    "embedding_rows_off_by_one": {
        "embed": lambda ids, w: LyingBackward.apply(lambda w: w[ids], lambda w: w[(ids + 1) % VOCAB], w)
    },
}


def model_case(
    faults: dict[str, Any], *, dtype: torch.dtype = torch.float32, after: Any = None, frozen: tuple[str, ...] = ()
) -> dict[str, Any]:
    ids = torch.randint(0, VOCAB, (24,), generator=torch.Generator().manual_seed(1))
    # Both sides start from the values that the narrower one can hold.
    start = {name: tensor.to(dtype).to(torch.float64) for name, tensor in parameters().items()}
    exact = {name: tensor.clone().requires_grad_(True) for name, tensor in start.items()}
    loss(exact, ids, {}).backward()
    reference = {name: t.grad if t.grad is not None else torch.zeros_like(t) for name, t in exact.items()}
    given = {name: tensor.to(dtype).requires_grad_(name not in frozen) for name, tensor in start.items()}
    value = loss(given, ids, faults)
    value.backward()
    grads: dict[str, Any] = {name: t.grad for name, t in given.items()}
    if after is not None:
        after(grads, reference)
    sums = gradients.model_accumulations(1, width=HIDDEN, tokens=24, vocab=VOCAB)
    bound = gradients.rounding_bound(dtype, gradients.model_roundings(1), accumulations=sums)
    declared = frozen if after is DECLARED else ()
    check = gradients.check_gradients(grads, reference, bound=bound, frozen=declared)
    forward = abs(float(value.detach()) - float(loss({n: t.detach() for n, t in given.items()}, ids, {})))
    return report(check) | {"forward_error": forward}


def report(check: Any) -> dict[str, Any]:
    return {
        "verdict": check.verdict,
        "codes": sorted({item.code for item in check.wrong}),
        "wrong": sorted(item.name for item in check.wrong),
        "details": {item.name: item.detail for item in check.wrong},
        "worst": check.worst.relative_error if check.worst else None,
        "bound": check.bound,
    }


def DECLARED(grads: dict[str, Any], reference: dict[str, Tensor]) -> None:
    """Marks a case whose frozen parameters are told to the check."""


def edited(edit: Any) -> Any:
    def after(grads: dict[str, Any], reference: dict[str, Tensor]) -> None:
        edit(grads)

    return after


def poison(grads: dict[str, Any]) -> None:
    grads["v"][3, 5] = float("nan")


def no_signal(grads: dict[str, Any], reference: dict[str, Tensor]) -> None:
    for name in grads:
        grads[name] = torch.zeros_like(grads[name])
        reference[name] = torch.zeros_like(reference[name])


def cases() -> dict[str, dict[str, Any]]:
    found = {name: model_case(faults) for name, faults in FAULTS.items()}
    found["right_in_bfloat16"] = model_case({}, dtype=torch.bfloat16)
    found["case_38_in_bfloat16"] = model_case(FAULTS["log_softmax_with_identity_backward"], dtype=torch.bfloat16)
    found["trained_parameter_frozen_by_mistake"] = model_case({}, frozen=("norm2", "k"))
    found["frozen_and_declared"] = model_case({}, frozen=("norm2", "k"), after=DECLARED)
    found["one_nan"] = model_case({}, after=edited(poison))
    found["halved"] = model_case({}, after=edited(lambda g: g.update(o=g["o"] / 2)))
    found["wrong_shape"] = model_case({}, after=edited(lambda g: g.update(head=g["head"][:-1])))
    found["one_parameter_zero"] = model_case({}, after=edited(lambda g: g.update(router=torch.zeros_like(g["router"]))))
    found["unknown_parameter"] = model_case({}, after=edited(lambda g: g.update(ghost=torch.ones(2))))
    found["no_signal"] = model_case({}, after=no_signal)
    return found


def operators() -> dict[str, dict[str, Any]]:
    """The same faults one operator at a time, in bfloat16, as the trainer's operators are checked."""
    generator = torch.Generator().manual_seed(2)

    def make(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).bfloat16()

    def through(function: Any, wrong: Any) -> Any:
        return lying(lambda *t: function(*t), lambda *t: wrong(*t))

    wide = {"x": make(32, 2048), "weight": make(2048)}
    qkv = {name: make(20, HIDDEN) for name in "qkv"}
    return {
        "log_softmax": report(gradients.check_vjp(log_softmax, log_softmax, {"x": make(16, 200)})),
        "log_softmax_identity": report(
            gradients.check_vjp(through(log_softmax, lambda x: x), log_softmax, {"x": make(16, 200)})
        ),
        "norm": report(gradients.check_vjp(lambda x, w: norm(x.float(), w.float()).bfloat16(), norm, wide)),
        "norm_without_projection_2048_wide": report(
            gradients.check_vjp(through(norm, norm_without_projection), norm, wide)
        ),
        "attention": report(
            gradients.check_vjp(lambda q, k, v: attend(q.float(), k.float(), v.float()).bfloat16(), attend, qkv)
        ),
        "attention_scale": report(
            gradients.check_vjp(through(attend, lambda q, k, v: attend(q, k, v, 0.3)), attend, qkv)
        ),
        "residual": report(
            gradients.check_vjp(
                through(lambda x, y: x + y, lambda x, y: 2 * x + y),
                lambda x, y: x + y,
                {"x": make(8, 8), "y": make(8, 8)},
            )
        ),
        "frozen_input": report(gradients.check_vjp(linear, linear, {"x": make(8, 8), "w": make(4, 8)}, frozen=("w",))),
    }


def main() -> None:
    found = {
        "models": cases(),
        "operators": operators(),
        "unit_roundoff": {
            name: gradients.unit_roundoff(getattr(torch, name)) for name in ("bfloat16", "float16", "float32")
        },
        "bounds": {str(n): gradients.rounding_bound(torch.bfloat16, n) for n in (1, 4, 40, 136)},
    }
    Path(sys.argv[-1]).write_text(json.dumps(found, allow_nan=False), encoding="utf-8")


if __name__ == "__main__":
    main()
