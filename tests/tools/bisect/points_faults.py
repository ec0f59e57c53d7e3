"""One operator of a warm transformers model changed while a block runs, below the points that the product watches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

Fault = Callable[[Any], contextlib.AbstractContextManager[None]]


def by_experts(order: Callable[[int, Tensor], Tensor], read: Callable[[int, Tensor], Tensor]) -> Any:
    """A loop over the experts. `order`: in which an expert has its tokens; `read`: whose rows it is given for them."""

    def forward(self: Any, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        total = torch.zeros_like(hidden)
        for number in range(self.num_experts):
            tokens = order(number, torch.where(chosen == number)[0])
            slots = (chosen[tokens] == number).int().argmax(1)
            gate, up = F.linear(hidden[read(number, tokens)], self.gate_up_proj[number]).chunk(2, dim=-1)
            out = F.linear(self.act_fn(gate) * up, self.down_proj[number]) * weights[tokens, slots, None]
            total.index_add_(0, tokens, out)
        return total

    return forward


def same(number: int, tokens: Tensor) -> Tensor:
    return tokens.clone()


def backwards(number: int, tokens: Tensor) -> Tensor:
    return tokens.flip(0)


def third_backwards(number: int, tokens: Tensor) -> Tensor:
    return tokens.flip(0) if number == 2 else tokens.clone()


def experts_as(run: Any, layers: tuple[int, ...]) -> Fault:
    """Some layers' experts by another function, through the registry that transformers has for such."""

    @contextlib.contextmanager
    def fault(net: Any) -> Iterator[None]:
        ALL_EXPERTS_FUNCTIONS["another"] = run
        configs = [net.model.layers[layer].mlp.experts for layer in layers]
        before = [module.config for module in configs]
        for module in configs:
            module.config = type(module.config).from_dict(module.config.to_dict())
            module.config._experts_implementation = "another"
        yield
        for module, config in zip(configs, before, strict=True):
            module.config = config

    return fault


@contextlib.contextmanager
def rounded_scales(net: Any) -> Iterator[None]:
    """Scales of activations rounded up to powers of two, as block scales of exponents are."""
    from vllm import _custom_ops as ops

    run = ops.onednn_scaled_int8_quant

    def quantise(given: Tensor, *rest: Any) -> Any:
        _, scale, zero = run(given, *rest)
        scale = scale.log2().ceil().exp2()
        return (given.float() / scale).round().to(torch.int8), scale, zero

    ops.onednn_scaled_int8_quant = quantise
    yield
    ops.onednn_scaled_int8_quant = run


def scaled(tensor: Callable[[Any], Tensor]) -> Fault:
    @contextlib.contextmanager
    def fault(net: Any) -> Iterator[None]:
        weight = tensor(net).data
        before = weight.clone()
        weight[: len(weight) // 2] *= 1.25
        yield
        weight.copy_(before)

    return fault


def mixer(net: Any) -> Any:
    """The recurrent one of the first layer."""
    layer = net.model.layers[0]
    return layer.linear_attn if hasattr(layer, "linear_attn") else layer.mamba


FAULTS: dict[str, Fault] = {
    "none": lambda net: contextlib.nullcontext(),
    "other expert": scaled(lambda net: net.model.layers[1].mlp.experts.down_proj[2]),
    "other kernel": scaled(lambda net: mixer(net).conv1d.weight),
    "other decay": scaled(lambda net: mixer(net).A_log),
    "rounded scales": rounded_scales,
    "own loop": experts_as(by_experts(same, same), (0, 1)),
    "rows backwards": experts_as(by_experts(backwards, same), (0, 1)),
    "another token's row": experts_as(by_experts(same, third_backwards), (0, 1)),
}
