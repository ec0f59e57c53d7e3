"""Whether `batch_invariant` was reached on the CPU engine: every matrix product and every attention in tiles, or the
model is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..engine import EngineError
from ..tiles import TILE_ROWS
from ..tiles_attention import attention_in_tiles, tile_queries
from .vllm_environment import ATTENTION, PRODUCTS


def confirm_tiles(model: torch.nn.Module, parts: Sequence[str]) -> None:
    """Raises: EngineError `unsupported_model` naming the layers of these parts that do not run in tiles."""
    report = tiles_report(model)
    asked = {PRODUCTS: "without_tiles", ATTENTION: "attention_without_tiles"}
    left = [name for part in parts for name in report[asked[part]]]
    if left:
        raise EngineError(
            "unsupported_model",
            f"batch_invariant: {len(left)} layers do not run in fixed tiles on this CPU engine, so a token's bits "
            f"may depend on its company: {', '.join(left[:5])}{' …' if len(left) > 5 else ''}; unquantised linears, "
            "experts and causal attention over a paged cache are covered",
        )


def tiles_report(model: torch.nn.Module) -> dict[str, Any]:
    """Which products and attentions of the model run in tiles: counts, and the names of those that do not."""
    tiled, left = 0, []
    for name, module in model.named_modules():
        kind = _product_kind(module)
        if kind is None:
            continue
        if _in_tiles(module, kind):
            tiled += 1
        else:
            left.append(f"{name} ({type(module).__name__})")
    return {"tile_rows": TILE_ROWS, "tiled_products": tiled, "without_tiles": left} | _attention_report(model)


def _attention_report(model: torch.nn.Module) -> dict[str, Any]:
    tiled, left, queries = 0, [], set()
    for name, layer in _attentions(model):
        if attention_in_tiles(layer.get_attn_backend().get_builder_cls()) and _is_causal(layer):
            tiled += 1
            queries.add(tile_queries(layer.isa, layer.num_heads, layer.num_kv_heads))
        else:
            left.append(f"{name} ({type(layer).__name__})")
    return {"tile_queries": sorted(queries), "tiled_attentions": tiled, "attention_without_tiles": left}


def _attentions(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Every layer that mixes positions, recurrent ones among them."""
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    return ((name, layer) for name, layer in model.named_modules() if isinstance(layer, AttentionLayerBase))


def _is_causal(layer: Any) -> bool:
    from vllm.v1.attention.backend import AttentionType

    return bool(getattr(layer, "attn_type", None) == AttentionType.DECODER)


def _product_kind(module: torch.nn.Module) -> str | None:
    method = type(getattr(module, "quant_method", None)).__name__
    if hasattr(module, "w13_weight"):
        return "experts"
    if hasattr(module, "cpu_linear"):
        return "linear"
    return "other" if "LinearMethod" in method else None


def _in_tiles(module: torch.nn.Module, kind: str) -> bool:
    if kind == "linear":
        return getattr(module, "cpu_linear_tile_rows", None) == TILE_ROWS
    if kind == "experts":
        return _experts_in_tiles(module)
    return False


def _experts_in_tiles(module: Any) -> bool:
    try:
        from vllm.model_executor.layers.fused_moe.experts import cpu_moe

        from ..tiles_experts import tiled_cpu_fused_moe
    except ImportError:
        return False
    kernel = experts_kernel(module)
    return (
        isinstance(kernel, cpu_moe.CPUUnquantizedExperts)
        and getattr(cpu_moe, "cpu_fused_moe", None) is tiled_cpu_fused_moe
    )


def experts_kernel(module: Any) -> Any:
    """The object that computes a layer's experts, or None where the engine keeps it elsewhere."""
    return getattr(getattr(module.quant_method, "moe_kernel", None), "fused_experts", None)
