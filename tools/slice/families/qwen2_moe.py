"""Qwen2-MoE: experts on most layers; with `use_sliding_window`, even layers below `max_window_layers` slide."""

from __future__ import annotations

from bitgate.tools.slice.family import Family, Kind, layer_count
from bitgate.tools.slice.keys import Explicit, Json, Prefix
from bitgate.tools.slice.kinds import QwenDense, listed, paired, qwen_dense


def types(config: Json) -> list[str]:
    first = config.get("max_window_layers", 28) if config.get("use_sliding_window") else 0
    return listed(
        config,
        "layer_types",
        layer_count(config),
        lambda layer: "sliding_attention" if layer % 2 == 0 and layer < first else "full_attention",
    )


def kinds(config: Json) -> list[Kind]:
    return paired(types(config), ["mlp" if dense else "moe" for dense in qwen_dense(config)])


FAMILY = Family(
    names=("qwen2_moe",),
    kinds=kinds,
    keys=(QwenDense(), Explicit("layer_types", types), Prefix("max_window_layers")),
)
