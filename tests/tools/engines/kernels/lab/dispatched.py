"""What the operators dispatch to: configurations told apart, wrong kernels seen, a row replaced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from shared import equal, model_of, ours, sequences, stack_of, table

# isort: split
# torch comes after `shared`, which sets the variables that vLLM reads.
import torch
from torch import Tensor

identity = ours("kernels.identity")


def dispatch(path: Path) -> dict[str, Any]:
    """Two configurations describe themselves differently, and a kernel of the same name gives other bits."""
    tiled, given = model_of(path), sequences()
    with torch.no_grad():
        right = tiled(given)
        RIGHT.update(tiled.operators.describe())
        untiled = model_of(path, batch_invariant=False)
        untiled(given)
        wrong = {name: wrong_kernel(path, given, right, swap) for name, swap in SWAPS.items()}
    return {
        "different": identity.different_kernels(untiled.operators.describe(), tiled.operators.describe()),
        "other_blocks": identity.different_kernels(RIGHT, {"attention": [attention_in_blocks(path, 32)]}),
        "wrong_kernels": wrong,
        # What vLLM puts in the place of a layer's forward when it compiles it.
        "compiled_forward": identity.function_name(torch.compile(native_rope)),
        "new_row": new_row(path, given, right),
    }


def attention_in_blocks(path: Path, size: int) -> str:
    ops = table.Operators(stack_of(path, block_size=size))
    name: str = ops.open("attention", heads=4, kv_heads=2, head_dim=64, scale=0.125).identity
    return name


def wrong_kernel(path: Path, given: list[Tensor], right: Tensor, swap: Callable[[Any], Any]) -> dict[str, Any]:
    """What comes of running the function of the same name that the engine does not dispatch for one operator."""
    model = model_of(path)
    undo = swap(model)
    different = int((model(given).view(torch.int32) != right.view(torch.int32)).sum())
    shown = identity.different_kernels(RIGHT, model.operators.describe())
    if undo is not None:
        undo()
    return {"tokens": different, "shown": shown}


RIGHT: dict[str, list[str]] = {}


def native_rope(model: Any) -> Callable[[], None]:
    # vLLM shares one layer among all models of the process.
    layer = model._shared.rope._layer
    chosen, layer._forward_method = layer._forward_method, layer.forward_native
    return lambda: setattr(layer, "_forward_method", chosen)


def cpp_norm(model: Any) -> None:
    from vllm import _custom_ops as ops

    for norm in model.operators._opened["rms_norm"]:

        def kernel(x: Tensor, residual: Tensor | None = None, *, layer: Any = norm._layer) -> Any:
            if residual is None:
                out = torch.empty_like(x)
                ops.rms_norm(out, x.contiguous(), layer.weight.data, layer.variance_epsilon)
                return out
            ops.fused_add_rms_norm(x, residual, layer.weight.data, layer.variance_epsilon)
            return x, residual

        norm._layer._forward_method = kernel


def cpp_silu(model: Any) -> None:
    for op in model.operators._opened["silu_and_mul"]:

        def kernel(x: Tensor) -> Tensor:
            out = x.new_empty(*x.shape[:-1], x.shape[-1] // 2)
            torch.ops._C.silu_and_mul(out, x.contiguous())
            return out

        op._layer._forward_method = kernel


def torch_attention(model: Any) -> None:
    impl = model._shared.attention._layer.impl
    plain = ours("kernels.attention").reference_attention

    class TorchAttention(type(impl)):  # type: ignore[misc]
        def forward(self, layer, query, key, value, cache, metadata, output):  # type: ignore[no-untyped-def]
            # The plan knows tiles of queries; the sequences that were given are what is attended to.
            lengths = [len(sequence) for sequence in sequences()]
            rows = [t.reshape(len(t), -1) for t in (query, key, value)]
            output.copy_(plain(lengths, *rows, layer.head_size, self.scale).view_as(output))

    impl.__class__ = TorchAttention


SWAPS = {
    "native_rope": native_rope,
    "cpp_norm": cpp_norm,
    "cpp_silu_and_mul": cpp_silu,
    "torch_attention": torch_attention,
}


def new_row(path: Path, given: list[Tensor], right: Tensor) -> dict[str, Any]:
    """A row that replaces one operator is all it takes: the model calls it, and describe shows it."""
    silu = table.TABLE["silu_and_mul"]

    def build(stack: Any) -> Any:
        class Own(silu):  # type: ignore[misc, name-defined]
            identity = "somebody's own"

        return Own(stack)

    model = model_of(path, rows={**table.TABLE, "silu_and_mul": build})
    with torch.no_grad():
        return {
            "equal": equal(model(given), right),
            "shown": identity.different_kernels(RIGHT, model.operators.describe()),
        }
