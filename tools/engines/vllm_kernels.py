"""Adapter of the trainer that calls the inference kernels."""

from __future__ import annotations

from typing import Final

from bitgate.tools.config.sides import Side
from bitgate.tools.engines.base import Adapter, Option, check_table
from bitgate.tools.engines.vllm_options import CALL_OPTIONS, check_arguments

OWN: Final = (
    Option("batch_invariant", "flag"),
    Option("recompute", "flag"),
    Option("master_dtype", "name", ("bfloat16", "float16", "float32")),
)


class KernelsAdapter(Adapter):
    def check_options(self, side: Side) -> None:
        names = {option.name for option in OWN}
        may = (*OWN, *(option for option in CALL_OPTIONS if option.name not in names))
        check_table(f"options.{side.name}", side.tried, may)
        check_arguments(side, names)
        check_table(f"side.{side.name}.options", {k: v for k, v in side.options.items() if k in names}, OWN)

    def default_axes(self, side: Side) -> tuple[str, ...]:
        return ("batching", "packing", "micro_batch")


ADAPTER = KernelsAdapter("vllm_kernels", decodes=False, trains=True, packings=("single", "padded", "packed"))
