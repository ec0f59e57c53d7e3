"""Whether `batch_invariant` was reached on the CPU engine: every matrix product in tiles, or the model is refused."""

from __future__ import annotations

from typing import Any

import torch

from ..engine import EngineError
from ..tiles import TILE_ROWS


def confirm_tiles(model: torch.nn.Module) -> None:
    """Raises: EngineError `unsupported_model` naming the layers whose product does not run in tiles."""
    left = tiles_report(model)["without_tiles"]
    if left:
        raise EngineError(
            "unsupported_model",
            f"batch_invariant: {len(left)} layers do not run in fixed row tiles on this CPU engine, so a token's bits "
            f"may depend on its company: {', '.join(left[:5])}{' …' if len(left) > 5 else ''}; unquantised linears and "
            "experts are covered",
        )


def tiles_report(model: torch.nn.Module) -> dict[str, Any]:
    """Which products of the model run in tiles: counts, and the names of those that do not."""
    tiled, left = 0, []
    for name, module in model.named_modules():
        kind = _product_kind(module)
        if kind is None:
            continue
        if _in_tiles(module, kind):
            tiled += 1
        else:
            left.append(f"{name} ({type(module).__name__})")
    return {"tile_rows": TILE_ROWS, "tiled_products": tiled, "without_tiles": left}


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
