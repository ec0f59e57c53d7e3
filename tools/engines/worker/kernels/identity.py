"""What a kernel is called: one spelling for the trainer's table and for the engine that is running.

`engine_operators(model)` reads it off the rollout engine's loaded model, `Operators.describe()` off the trainer's
table. Equal strings mean the same function under the same configuration.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any


def function_name(function: Callable[..., Any]) -> str:
    """Module-qualified name; a lambda is told by the operators that its code calls."""
    function = getattr(function, "__func__", function)
    name = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', type(function).__name__)}"
    code = getattr(function, "__code__", None)
    return f"{name}[{'.'.join(code.co_names)}]" if isinstance(code, CodeType) and "<lambda>" in name else name


def custom_op_name(layer: Any, ir_operator: str | None = None) -> str:
    """The forward that a vLLM `CustomOp` chose, and behind an IR operator the implementation that comes first."""
    name = f"{type(layer).__name__}.{layer._forward_method.__name__}"
    if ir_operator is None:
        return name
    from vllm.ir.op import IrOp

    return f"{name} -> ir.{ir_operator}[{'>'.join(IrOp.registry[ir_operator].get_priority()) or 'native'}]"


def attention_name(layer: Any, *, split_kv: bool) -> str:
    """Backend, instruction set, cache dtype and head shape of a vLLM `Attention` layer."""
    isa = getattr(layer, "isa", "unset")
    return (
        f"{type(layer.impl).__name__}[isa={isa},kv={layer.kv_cache_dtype},split_kv={int(split_kv)},"
        f"heads={layer.num_heads}/{layer.num_kv_heads}x{layer.head_size}]"
    )


def linear_name(product: Callable[..., Any], tile_rows: int | None) -> str:
    """A matrix product and the tile it runs in (`None`: all rows at once)."""
    return f"{function_name(product)}[rows={tile_rows or 'all'}]"


def experts_name(experts: Any) -> str:
    return f"{type(experts).__name__}[isa={getattr(experts, 'isa', '?')}]"
