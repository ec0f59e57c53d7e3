"""One autograd function for every operator: the value is the kernel's, the derivative is ordinary torch.

This is `value + (graph - graph.detach())` without its two faults: that sum turns -0.0 into +0.0, and an infinity
into NaN. Here the kernel's bits pass through untouched, and the graph is only built in the backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .guard import Fingerprint, Watch

Grads = Sequence[Tensor | None]
Needs = Sequence[bool]
Value = Callable[..., Tensor | tuple[Tensor, ...]]
Vjp = Callable[[Sequence[Tensor], Grads, Needs], Grads]


@dataclass(frozen=True)
class Call:
    """One use of an operator at one place of a model.

    `value(*tensors)` runs the kernel without gradients. `vjp(tensors, grads, needs)` returns one gradient, or None,
    for each tensor. The tensors from `first_weight` on are the master weights, called `names`.
    `integers` are the positions of outputs that carry no gradient (indices).
    """

    where: str
    value: Value
    vjp: Vjp
    names: Sequence[str] = ()
    prints: Sequence[Fingerprint] | None = None
    integers: Sequence[int] = field(default=())


class _Visible(torch.autograd.Function):
    @staticmethod
    def forward(ctx, call: Call, *tensors: Tensor):  # type: ignore[no-untyped-def]
        outputs = call.value(*tensors)
        ctx.call = call
        weights = tensors[len(tensors) - len(call.names) :]
        ctx.watch = Watch(call.names, weights, call.prints)
        ctx.save_for_backward(*tensors)
        if call.integers:
            ctx.mark_non_differentiable(*(outputs[i] for i in call.integers))
        return outputs

    @staticmethod
    def backward(ctx, *grads: Tensor | None):  # type: ignore[no-untyped-def]
        # Before the saved tensors are touched: torch's own version check would refuse first, without the name.
        ctx.watch.check(ctx.call.where)
        return None, *ctx.call.vjp(ctx.saved_tensors, grads, ctx.needs_input_grad[1:])


def visible(call: Call, *tensors: Tensor):  # type: ignore[no-untyped-def]
    """The kernel's outputs for `tensors` (inputs first, then the weights that `call.names` names)."""
    return _Visible.apply(call, *tensors)


def from_graph(graph: Callable[..., Tensor | tuple[Tensor, ...]]) -> Vjp:
    """A VJP by running `graph`, the same computation in ordinary torch, and differentiating it.

    `graph(*tensors)` gets float32 leaves in place of every floating tensor, so that the derivative is rounded to
    the storage dtype once, at the end.
    """

    def vjp(tensors: Sequence[Tensor], grads: Grads, needs: Needs) -> Grads:
        leaves = [_leaf(tensor, need) for tensor, need in zip(tensors, needs, strict=True)]
        with torch.enable_grad():
            outputs = graph(*leaves)
        found = _gradients(outputs if isinstance(outputs, tuple) else (outputs,), grads, leaves)
        return [None if g is None else g.to(t.dtype) for g, t in zip(found, tensors, strict=True)]

    return vjp


def _leaf(tensor: Tensor, need: bool) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    return tensor.detach().to(torch.float32).requires_grad_(need)


def _gradients(outputs: Sequence[Tensor], grads: Grads, leaves: Sequence[Tensor]) -> list[Tensor | None]:
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    pairs = [(o, g.to(o.dtype)) for o, g in zip(outputs, grads, strict=False) if g is not None and o.requires_grad]
    if not wanted or not pairs:
        return [None] * len(leaves)
    found = iter(torch.autograd.grad([o for o, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True))
    return [next(found) if leaf.requires_grad else None for leaf in leaves]
