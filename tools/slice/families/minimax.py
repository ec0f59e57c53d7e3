"""MiniMax-01: the decay of lightning attention depends on the layer's number and on the depth of the model.

A slice is right only where the files carry the decay buffers, which are then copied like weights.
"""

from __future__ import annotations

from bitgate.tools.slice.family import Family, Kind, layer_count
from bitgate.tools.slice.keys import Explicit, Json, PerLayer
from bitgate.tools.slice.kinds import every, listed

BUFFERS = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")


def types(config: Json) -> list[str]:
    old = config.get("attn_type_list")
    if old is not None and config.get("layer_types") is None:
        return ["full_attention" if item == 1 else "linear_attention" for item in old]
    otherwise = every({}, "", 2, "linear_attention", "full_attention")
    return listed(config, "layer_types", layer_count(config), otherwise)


def kinds(config: Json) -> list[Kind]:
    return [("lightning_attention" if word == "linear_attention" else word, "moe") for word in types(config)]


def buffers(config: Json) -> dict[int, tuple[str, ...]]:
    return {i: BUFFERS for i, kind in enumerate(kinds(config)) if kind[0] == "lightning_attention"}


FAMILY = Family(
    names=("minimax", "minimax_text_01"),
    kinds=kinds,
    keys=(Explicit("layer_types", types), PerLayer("attn_type_list"), PerLayer("layernorm_linear_attention_alpha")),
    depth_buffers=buffers,
    notes=("An engine that computes the decay from the layer's number instead of reading it is wrong on this slice.",),
)
