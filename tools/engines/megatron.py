"""Adapter of Megatron-Core's GPTModel, as a trainer runs it."""

from __future__ import annotations

from typing import Final

from bitgate.tools.config.sides import Side
from bitgate.tools.engines.base import Adapter, Option, check_table
from bitgate.tools.engines.interpreters import platform_of
from bitgate.tools.engines.jobs import Packing

OPTIONS: Final = (
    Option("dtype", "name", ("auto", "bfloat16", "float16", "float32")),
    Option("device", "name", ("auto", "cpu", "cuda")),
    Option("transformer_impl", "name", ("auto", "local", "transformer_engine")),
    Option("make_vocab_size_divisible_by", "count"),
    Option("attention_softmax_in_fp32", "flag"),
    Option("bias_activation_fusion", "flag"),
    Option("bias_dropout_fusion", "flag"),
    Option("deterministic_mode", "flag"),
    Option("moe_router_dtype", "name", ("fp32", "fp64")),
    Option("moe_token_dispatcher_type", "name", ("allgather", "alltoall")),
    Option("moe_grouped_gemm", "flag"),
)
"""Arguments of Megatron-Core's `TransformerConfig` and of Megatron-LM's command line under their own names, and
bitgate's `dtype` and `device`."""


class MegatronAdapter(Adapter):
    def check_options(self, side: Side) -> None:
        check_table(f"options.{side.name}", side.tried, OPTIONS)
        check_table(f"side.{side.name}.options", side.options, OPTIONS)

    def default_axes(self, side: Side) -> tuple[str, ...]:
        return ("batching", "packing", "micro_batch") if _packs(side) else ("batching", "micro_batch")

    def layouts(self, side: Side) -> tuple[Packing, ...]:
        """A side that says it packs is taken at its word: where its layers refuse, the engine gives the reason."""
        packs = _packs(side) or "packing" in (side.axes or ())
        return self.packings if packs else ("single", "padded")


def _packs(side: Side) -> bool:
    """Megatron-Core's local layers refuse packed sequences; Transformer Engine's, which need a GPU, take them."""
    local = side.options.get("transformer_impl") == "local" or side.options.get("device") == "cpu"
    return not local and platform_of(side.python) != "cpu"


ADAPTER = MegatronAdapter("megatron", decodes=False, trains=True, packings=("single", "padded", "packed"))
