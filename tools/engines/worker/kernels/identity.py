"""What a kernel is called: one spelling for the trainer's table and for the engine that is running.

`engine_kernels(model, block_size)` reads it off the rollout engine's loaded model, `Operators.describe()` off the
trainer's table. Equal strings mean the same function under the same configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

Kernels = Mapping[str, Sequence[str]]
"""operator -> the identities of its kernels, sorted, without repetition."""


def function_name(function: Callable[..., Any]) -> str:
    """Module-qualified name; a lambda is told by the operators that its code calls."""
    function = getattr(function, "__func__", function)
    name = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', type(function).__name__)}"
    code = getattr(function, "__code__", None)
    return f"{name}[{'.'.join(code.co_names)}]" if isinstance(code, CodeType) and "<lambda>" in name else name


def custom_op_name(layer: Any, ir_operator: str | None = None) -> str:
    """The forward that a vLLM `CustomOp` chose, and behind an IR operator the implementation that comes first."""
    name = function_name(layer._forward_method)
    if ir_operator is None:
        return name
    from vllm.ir.op import IrOp

    return f"{name} -> ir.{ir_operator}[{'>'.join(IrOp.registry[ir_operator].get_priority()) or 'native'}]"


def attention_name(layer: Any, block_size: int, in_tiles: bool) -> str:
    """Backend, instruction set, cache dtype and blocks, plan and head shape of a vLLM `Attention` layer."""
    from vllm import envs

    from ..tiles_attention import tile_queries

    isa = getattr(layer, "isa", "none")
    queries = tile_queries(isa, layer.num_heads, layer.num_kv_heads) if in_tiles else "all"
    return (
        f"{type(layer.impl).__name__}[isa={isa},kv={layer.kv_cache_dtype},block={block_size},"
        f"split_kv={int(envs.VLLM_CPU_ATTN_SPLIT_KV)},queries={queries},"
        f"heads={layer.num_heads}/{layer.num_kv_heads}x{layer.head_size}]"
    )


def linear_name(layer: Any, method: Any, tile_rows: int | None) -> str:
    """A layer's matrix product and the tile it runs in (`None`: all rows at once)."""
    product = getattr(layer, "native_cpu_linear", getattr(layer, "cpu_linear", method.apply))
    return f"{function_name(product)}[rows={tile_rows or 'all'}]"


def experts_name(experts: Any, tile_rows: int | None) -> str:
    return f"{type(experts).__name__}[isa={getattr(experts, 'isa', 'none')},rows={tile_rows or 'all'}]"


def engine_kernels(model: Any, block_size: int) -> dict[str, list[str]]:
    """The same description, of the vLLM model that runs in this process on a KV cache in blocks of `block_size`."""
    found: dict[str, set[str]] = {}
    for module in model.modules():
        for operator, name in _of_module(module, block_size):
            found.setdefault(operator, set()).add(name)
    from vllm.v1.sample.sampler import Sampler

    found["logprob"] = {function_name(Sampler.compute_logprobs)}
    return {operator: sorted(names) for operator, names in sorted(found.items())}


def _of_module(module: Any, block_size: int) -> Iterator[tuple[str, str]]:
    kind = type(module).__name__
    if hasattr(module, "cpu_linear") and kind != "VocabParallelEmbedding":
        yield "linear", linear_name(module, module.quant_method, getattr(module, "cpu_linear_tile_rows", None))
    elif kind == "VocabParallelEmbedding":
        yield "embedding", function_name(module.quant_method.embedding)
    elif kind == "RMSNorm":
        yield "rms_norm", custom_op_name(module, "rms_norm")
        yield "fused_add_rms_norm", custom_op_name(module, "fused_add_rms_norm")
    elif kind == "SiluAndMul":
        yield "silu_and_mul", custom_op_name(module)
    elif hasattr(module, "cos_sin_cache"):
        yield "rotary_embedding", custom_op_name(module)
    elif hasattr(module, "impl") and hasattr(module, "attn_backend"):
        from ..tiles_attention import attention_in_tiles

        in_tiles = attention_in_tiles(module.attn_backend.get_builder_cls())
        yield "attention", attention_name(module, block_size, in_tiles)
    elif hasattr(module, "routed_experts") and hasattr(module, "router"):
        yield "router", function_name(module.router._compute_routing)
    elif hasattr(module, "w13_weight"):
        yield "experts", _engine_experts_name(module)


def _engine_experts_name(module: Any) -> str:
    from vllm.model_executor.layers.fused_moe.experts import cpu_moe

    from ..tiles import TILE_ROWS
    from ..tiles_experts import tiled_cpu_fused_moe

    kernel = module.quant_method.moe_kernel.fused_experts
    return experts_name(kernel, TILE_ROWS if getattr(cpu_moe, "cpu_fused_moe", None) is tiled_cpu_fused_moe else None)


def different_kernels(a: Kernels, b: Kernels) -> dict[str, tuple[list[str], list[str]]]:
    """Operator -> what `a` and what `b` run for it, where that differs; an operator that one of them lacks is left out.

    Equal kernels under the same configuration have equal strings, so that this needs nothing of the engines.
    """
    pairs = {operator: (list(a[operator]), list(b[operator])) for operator in sorted(a.keys() & b.keys())}
    return {operator: pair for operator, pair in pairs.items() if pair[0] != pair[1]}
