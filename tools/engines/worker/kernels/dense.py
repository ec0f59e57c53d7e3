"""Dense operators: embedding, linear, RMSNorm (with and without the residual sum), SiLU-mul."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..tiles import TILE_ROWS, tiled_rows
from .guard import Fingerprint, fingerprint
from .identity import custom_op_name, function_name, linear_name
from .stack import Stack
from .visible import Call, Grads, Needs, from_graph, visible


class Embedding:
    """Rows of the embedding table: vLLM's `UnquantizedEmbeddingMethod.embedding`."""

    def __init__(self, stack: Stack) -> None:
        from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

        self._lookup = UnquantizedEmbeddingMethod().embedding

    @property
    def identity(self) -> str:
        return function_name(self._lookup)

    def __call__(self, ids: Tensor, weight: Tensor, name: str) -> Tensor:
        """ids [T] int64, weight [V, H] -> [T, H]."""
        call = Call(f"embedding({name})", self._value, _embedding_vjp, names=(name,))
        return visible(call, ids, weight)

    def _value(self, ids: Tensor, weight: Tensor) -> Tensor:
        holder = torch.nn.Module()
        holder.weight = torch.nn.Parameter(weight.detach(), requires_grad=False)
        return self._lookup(holder, ids)


def _embedding_vjp(tensors: Sequence[Tensor], grads: Grads, needs: Needs) -> Grads:
    ids, weight = tensors
    grad = grads[0]
    if grad is None or not needs[1]:
        return None, None
    # float32: a token that occurs often would otherwise lose its small contributions in bf16.
    total = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
    return None, total.index_add_(0, ids, grad.to(torch.float32)).to(weight.dtype)


class Linear:
    """A (fused) linear as the engine packs and dispatches it, in fixed row tiles when batch-invariant.

    One object a place in the model: it keeps the packed weight for as long as the master weights' bytes stay.
    """

    def __init__(self, stack: Stack, *, padded_rows: int = 0, embedding: bool = False) -> None:
        """`padded_rows`: zero rows the engine appends to the weight (the LM head's vocabulary padding)."""
        from vllm.model_executor.layers.linear import UnquantizedLinearMethod
        from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

        with stack.active():
            self._method = UnquantizedEmbeddingMethod() if embedding else UnquantizedLinearMethod()
        self._padded_rows = padded_rows
        self._tile_rows = TILE_ROWS if stack.batch_invariant else None
        self._prints: tuple[Fingerprint, ...] | None = None
        self._layer: Any = None

    @property
    def identity(self) -> str:
        return "not run yet" if self._layer is None else linear_name(self._layer, self._method, self._tile_rows)

    def __call__(
        self, x: Tensor, weights: Sequence[Tensor], names: Sequence[str], biases: Sequence[Tensor] = ()
    ) -> Tensor:
        """x [..., K], weights [N_i, K] in the engine's fused order, biases none or one [N_i] each -> [..., sum N_i].

        `names` are those of the weights, then those of the biases.
        """
        prints = tuple(map(fingerprint, [*weights, *biases]))
        split = len(weights)

        def value(x: Tensor, *masters: Tensor) -> Tensor:
            self._pack(masters[:split], masters[split:], prints)
            return self._product(x)

        def vjp(tensors: Sequence[Tensor], grads: Grads, needs: Needs) -> Grads:
            return _linear_vjp(tensors[0], tensors[1 : 1 + split], grads[0], needs, biased=bool(biases))

        where = f"linear({names[0]}{', …' if len(names) > 1 else ''})"
        return visible(Call(where, value, vjp, names, prints), x, *weights, *biases)

    def _pack(self, weights: Sequence[Tensor], biases: Sequence[Tensor], prints: tuple[Fingerprint, ...]) -> None:
        if prints == self._prints:
            return
        layer = torch.nn.Module()
        layer.weight = _parameter(_padded(weights, self._padded_rows))
        layer.bias = _parameter(_padded(biases, self._padded_rows)) if biases else None
        self._method.process_weights_after_loading(layer)
        self._layer, self._prints = layer, prints

    def _product(self, x: Tensor) -> Tensor:
        def product(rows: Tensor) -> Tensor:
            return self._method.apply(self._layer, rows, self._layer.bias)

        whole = product(x) if self._tile_rows is None else tiled_rows(product, x, self._tile_rows)
        return whole[..., : whole.shape[-1] - self._padded_rows]


def _parameter(tensor: Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(tensor, requires_grad=False)


def _padded(parts: Sequence[Tensor], rows: int) -> Tensor:
    joined = torch.cat([part.detach() for part in parts])
    return F.pad(joined, [0, 0] * (joined.ndim - 1) + [0, rows]) if rows else joined


def _linear_vjp(
    x: Tensor, weights: Sequence[Tensor], grad: Tensor | None, needs: Needs, *, biased: bool
) -> list[Tensor | None]:
    if grad is None:
        return [None] * len(needs)
    flat, rows = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1]).to(x.dtype)
    parts = rows.split([weight.shape[0] for weight in weights], dim=-1)
    wanted = needs[1 : 1 + len(weights)]
    to_x = (rows @ torch.cat(list(weights))).reshape(x.shape) if needs[0] else None
    to_weights = [part.t() @ flat if need else None for part, need in zip(parts, wanted, strict=True)]
    to_biases = [part.sum(0, dtype=torch.float32).to(part.dtype) for part in parts] if biased else []
    return [to_x, *to_weights, *to_biases]


class RmsNorm:
    """vLLM's `RMSNorm` layer, as the engine's configuration dispatches it; with a residual, the fused sum too."""

    def __init__(self, stack: Stack, size: int, eps: float) -> None:
        from vllm.model_executor.layers.layernorm import RMSNorm

        with stack.active():
            self._layer = RMSNorm(size, eps=eps)
        self._eps = eps

    @property
    def identity(self) -> str:
        return custom_op_name(self._layer, "rms_norm")

    @property
    def fused_identity(self) -> str:
        return custom_op_name(self._layer, "fused_add_rms_norm")

    def __call__(self, x: Tensor, weight: Tensor, name: str) -> Tensor:
        """x [..., size] -> [..., size]."""
        call = Call(f"rms_norm({name})", self._value, from_graph(self._graph), names=(name,))
        return visible(call, x, weight)

    def add(self, x: Tensor, residual: Tensor, weight: Tensor, name: str) -> tuple[Tensor, Tensor]:
        """norm(x + residual) and the sum as the engine rounds it, both [T, size]."""
        call = Call(f"fused_add_rms_norm({name})", self._add_value, from_graph(self._add_graph), names=(name,))
        return visible(call, x, residual, weight)  # type: ignore[no-any-return]

    def _value(self, x: Tensor, weight: Tensor) -> Tensor:
        self._layer.weight.data = weight.detach()
        return self._layer(x)

    def _add_value(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        self._layer.weight.data = weight.detach()
        # The layer may write into its arguments (`maybe_inplace`); these are saved for the backward.
        normed, total = self._layer(x.clone(), residual.clone())
        return normed, total

    def _graph(self, x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self._eps) * weight

    def _add_graph(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        return self._graph(total, weight), total


class SiluMul:
    """vLLM's `SiluAndMul`: silu(x[..., :n]) * x[..., n:]."""

    def __init__(self, stack: Stack) -> None:
        from vllm.model_executor.layers.activation import SiluAndMul

        with stack.active():
            self._layer = SiluAndMul()

    @property
    def identity(self) -> str:
        return custom_op_name(self._layer)

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, 2n] -> [T, n]."""
        return visible(Call("silu_and_mul", self._layer, from_graph(_silu_graph)), x)


def _silu_graph(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up
