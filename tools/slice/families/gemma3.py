"""Gemma 3: five sliding layers, one full; rope differs by type; vision tower kept whole; tied embeddings."""

from __future__ import annotations

from bitgate.tools.slice.family import Family, Kind, layer_count
from bitgate.tools.slice.keys import Explicit, Json
from bitgate.tools.slice.kinds import every, listed


def types(config: Json) -> list[str]:
    key = "sliding_window_pattern" if "sliding_window_pattern" in config else "_sliding_window_pattern"
    otherwise = every(config, key, 6, "full_attention", "sliding_attention")
    return listed(config, "layer_types", layer_count(config), otherwise)


def kinds(config: Json) -> list[Kind]:
    return [(word, "mlp") for word in types(config)]


FAMILY = Family(
    names=("gemma3", "gemma3_text"),
    kinds=kinds,
    keys=(Explicit("layer_types", types, ("sliding_window_pattern", "_sliding_window_pattern")),),
)
