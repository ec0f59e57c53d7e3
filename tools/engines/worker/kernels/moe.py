"""Mixture of experts: the engine's router and its grouped expert kernel."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..tiles import TILE_ROWS
from ..tiles_experts import tiled_cpu_fused_moe
from .errors import OperatorWithoutEntry
from .guard import Fingerprint, fingerprint
from .identity import experts_name, function_name
from .stack import Stack
from .visible import Call, Grads, Needs, from_graph, visible


class Router:
    """Top-k experts and their weights from router logits, by the engine's router for this platform."""

    def __init__(self, stack: Stack, *, experts: int, top_k: int, renormalise: bool) -> None:
        from vllm.model_executor.layers.fused_moe.router.router_factory import create_fused_moe_router

        with stack.active():
            self._router = create_fused_moe_router(top_k=top_k, global_num_experts=experts, renormalize=renormalise)
        self._renormalise = renormalise

    @property
    def identity(self) -> str:
        return function_name(self._router._compute_routing)

    def __call__(self, hidden: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """logits [T, E] -> weights float32 [T, k], experts int32 [T, k]."""

        def value(logits: Tensor) -> tuple[Tensor, Tensor]:
            weights, experts = self._router.select_experts(hidden_states=hidden.detach(), router_logits=logits)
            chosen.append(experts)
            return weights, experts

        def vjp(tensors: Sequence[Tensor], grads: Grads, needs: Needs) -> Grads:
            graph = from_graph(lambda logits: router_weights(logits, chosen[0], self._renormalise))
            return graph(tensors, grads[:1], needs)

        chosen: list[Tensor] = []
        return visible(Call("router", value, vjp, integers=(1,)), logits)  # type: ignore[no-any-return]


def router_weights(logits: Tensor, experts: Tensor, renormalise: bool) -> Tensor:
    """The weights of given `experts` [T, k] as a function of the logits [T, E]."""
    picked = logits.gather(-1, experts.to(torch.int64))
    return picked.softmax(-1) if renormalise else (picked - logits.logsumexp(-1, keepdim=True)).exp()


class Experts:
    """The grouped expert product of the engine: w2(silu(w1 x) * (w3 x)), weighted and summed over a token's experts."""

    def __init__(self, stack: Stack, *, experts: int, top_k: int, hidden: int, intermediate: int) -> None:
        from vllm.model_executor.layers.fused_moe.config import FusedMoEQuantConfig
        from vllm.model_executor.layers.fused_moe.oracle.unquantized import select_unquantized_moe_backend

        with stack.active():
            self._config = _moe_config(stack, experts, top_k, hidden, intermediate)
            _, kernel = select_unquantized_moe_backend(self._config)
            self._experts: Any = kernel(self._config, FusedMoEQuantConfig.make())
        self._count = experts
        self._tile_rows = TILE_ROWS if stack.batch_invariant else None
        self._prints: tuple[Fingerprint, ...] | None = None
        self._layer: Any = None
        if self._tile_rows:
            _refuse_untiled(self._experts)

    @property
    def identity(self) -> str:
        return experts_name(self._experts, self._tile_rows)

    def __call__(
        self, x: Tensor, weights: Tensor, ids: Tensor, masters: Sequence[Tensor], names: Sequence[str]
    ) -> Tensor:
        """x [T, H], weights and ids [T, k], masters gate [I, H], up [I, H], down [H, I] of every expert -> [T, H]."""
        prints = tuple(map(fingerprint, masters))

        def value(x: Tensor, weights: Tensor, ids: Tensor, *masters: Tensor) -> Tensor:
            self._pack(masters, prints)
            return self._apply(x, weights, ids)

        call = Call(f"experts({names[0]}, …)", value, from_graph(_experts_graph), names, prints)
        return visible(call, x, weights, ids, *masters)

    def _pack(self, masters: Sequence[Tensor], prints: tuple[Fingerprint, ...]) -> None:
        if prints == self._prints:
            return
        layer = torch.nn.Module()
        layer.moe_config = self._config
        gate, up, down = (torch.stack([m.detach() for m in masters[i::3]]) for i in range(3))
        layer.w13_weight = torch.nn.Parameter(torch.cat([gate, up], dim=1), requires_grad=False)
        layer.w2_weight = torch.nn.Parameter(down, requires_grad=False)
        self._experts.process_weights_after_loading(layer)
        self._layer, self._prints = layer, prints

    def _apply(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        output, scratch = torch.empty_like(x), x.new_empty(0)
        with _tiles() if self._tile_rows else contextlib.nullcontext():
            self._experts.apply(
                output=output,
                hidden_states=x,
                w1=self._layer.w13_weight,
                w2=self._layer.w2_weight,
                topk_weights=weights,
                topk_ids=ids,
                activation=self._config.activation,
                global_num_experts=self._count,
                expert_map=None,
                a1q_scale=None,
                a2_scale=None,
                workspace13=scratch,
                workspace2=scratch,
                expert_tokens_meta=None,
                apply_router_weight_on_input=False,
            )
        return output


@contextlib.contextmanager
def _tiles() -> Iterator[None]:
    """Inside, the expert classes call the tiled kernel, the one that the rollout engine's plugin installs."""
    from vllm.model_executor.layers.fused_moe.experts import cpu_moe

    before, cpu_moe.cpu_fused_moe = cpu_moe.cpu_fused_moe, tiled_cpu_fused_moe
    try:
        yield
    finally:
        cpu_moe.cpu_fused_moe = before


def _refuse_untiled(experts: Any) -> None:
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

    if not isinstance(experts, CPUUnquantizedExperts):
        raise OperatorWithoutEntry(
            "experts (batch-invariant)",
            type(experts).__name__,
            "add a batch-invariant form of it, or set batch_invariant = false",
        )


def _moe_config(stack: Stack, experts: int, top_k: int, hidden: int, intermediate: int) -> Any:
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig, FusedMoEParallelConfig, RoutingMethodType

    return FusedMoEConfig(
        num_experts=experts,
        experts_per_token=top_k,
        hidden_dim=hidden,
        intermediate_size=intermediate,
        num_local_experts=experts,
        num_logical_experts=experts,
        activation=MoEActivation.SILU,
        device="cpu",
        routing_method=RoutingMethodType.Renormalize,
        moe_parallel_config=FusedMoEParallelConfig.make_no_parallel(),
        in_dtype=stack.dtype,
        moe_backend=stack.vllm_config.kernel_config.moe_backend,
    )


def _experts_graph(x: Tensor, weights: Tensor, ids: Tensor, *masters: Tensor) -> Tensor:
    """Expert by expert; one that no token chose keeps a zero gradient, not none."""
    total = torch.zeros_like(x)
    for index in range(len(masters) // 3):
        gate, up, down = masters[3 * index : 3 * index + 3]
        rows, slots = (ids == index).nonzero(as_tuple=True)
        picked = x[rows]
        out = (F.silu(picked @ gate.t()) * (picked @ up.t())) @ down.t()
        total = total.index_add(0, rows, out * weights[rows, slots].unsqueeze(-1))
    return total
