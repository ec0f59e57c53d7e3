"""Adapter of transformers models, as a trainer without the inference kernels would run them."""

from __future__ import annotations

from typing import Final

from bitgate.tools.config.sides import Side
from bitgate.tools.engines.base import Adapter, Option, check_table

OPTIONS: Final = (
    Option("attn_implementation", "name"),
    Option("dtype", "name", ("auto", "bfloat16", "float16", "float32")),
    Option("batch_invariant", "flag"),
    Option("device", "name", ("auto", "cpu", "cuda")),
    Option("gradient_checkpointing", "flag"),
    Option("experts_implementation", "name"),
)
"""Arguments of `AutoModelForCausalLM.from_pretrained`, and bitgate's own."""


class TransformersAdapter(Adapter):
    def check_options(self, side: Side) -> None:
        check_table(f"options.{side.name}", side.tried, OPTIONS)
        check_table(f"side.{side.name}.options", side.options, OPTIONS)

    def default_axes(self, side: Side) -> tuple[str, ...]:
        return ("batching", "packing", "micro_batch")


ADAPTER = TransformersAdapter("transformers", decodes=False, trains=True, packings=("single", "padded", "packed"))
