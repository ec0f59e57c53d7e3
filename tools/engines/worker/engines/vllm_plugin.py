"""The CPU engine's `batch_invariant`: every linear, the head, the router and the experts in fixed row tiles, and
attention in fixed query tiles.

vLLM calls `register` in each of its processes (entry point vllm.general_plugins). Three functions are replaced: the one
that gives a layer its matrix product, the grouped experts' kernel, and the one that plans attention.
"""

from __future__ import annotations

import os
from typing import Any

from ..tiles import TILE_ROWS, tiled
from ..tiles_attention import tile_attention
from .vllm_environment import ATTENTION, BATCH_INVARIANT_FLAG, PRODUCTS

_installed = False


def register() -> None:
    """Install the tiles if this run asked for them. May be called any number of times."""
    global _installed
    parts = os.environ.get(BATCH_INVARIANT_FLAG, "").split(",")
    if _installed or not {ATTENTION, PRODUCTS} & set(parts):
        return
    _installed = True
    if PRODUCTS in parts:
        _tile_linears()
        _tile_experts()
    if ATTENTION in parts:
        tile_attention()


def _tile_linears() -> None:
    import vllm.model_executor.layers.utils as layers

    native_dispatch = layers.dispatch_cpu_unquantized_gemm

    def dispatch(layer: Any, remove_weight: bool) -> None:
        outputs = layer.weight.shape[0]
        native_dispatch(layer, remove_weight)
        if hasattr(layer, "cpu_linear"):
            tile_layer(layer, outputs)

    # Its callers import it at the time of the call.
    layers.dispatch_cpu_unquantized_gemm = dispatch


def tile_layer(layer: Any, outputs: int) -> None:
    """Wrap a layer's product; `native_cpu_linear` keeps the one that the engine chose, which dispatched by the rows."""
    native = layer.native_cpu_linear = layer.cpu_linear
    plain = tiled(lambda x: native(x, layer.weight, None), outputs)
    biased = tiled(lambda x: native(x, layer.weight, layer.bias), outputs)
    layer.cpu_linear = lambda x, weight, bias: plain(x) if bias is None else biased(x)
    layer.cpu_linear_tile_rows = TILE_ROWS


def _tile_experts() -> None:
    try:
        from vllm.model_executor.layers.fused_moe.experts import cpu_moe
    except ImportError:
        # Older engines have their experts elsewhere; the engine then refuses models with experts (vllm_invariance.py).
        return
    if not hasattr(cpu_moe, "cpu_fused_moe"):
        return
    from ..tiles_experts import tiled_cpu_fused_moe

    cpu_moe.cpu_fused_moe = tiled_cpu_fused_moe
