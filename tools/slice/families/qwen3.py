"""Qwen3 and Qwen2, dense: full attention, or sliding from `max_window_layers` on."""

from __future__ import annotations

from bitgate.tools.slice.family import Family, Kind, layer_count
from bitgate.tools.slice.keys import Json, PerLayer, Prefix
from bitgate.tools.slice.kinds import listed


def kinds(config: Json) -> list[Kind]:
    total = layer_count(config)
    slides = bool(config.get("use_sliding_window")) and config.get("sliding_window") is not None
    first = config.get("max_window_layers", 28) if slides else total
    types = listed(config, "layer_types", total, lambda i: "sliding_attention" if i >= first else "full_attention")
    return [(word, "mlp") for word in types]


FAMILY = Family(names=("qwen3", "qwen2"), kinds=kinds, keys=(PerLayer("layer_types"), Prefix("max_window_layers")))
