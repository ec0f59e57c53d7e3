"""Jamba: attention and experts by period and offset, so offsets turn with the window; not every pick can be said."""

from __future__ import annotations

from bitgate.tools.slice.family import Family, Kind, layer_count
from bitgate.tools.slice.keys import Json, Periodic

ATTENTION = Periodic("attn_layer_period", "attn_layer_offset", (8, 4))
EXPERTS = Periodic("expert_layer_period", "expert_layer_offset", (2, 1))


def kinds(config: Json) -> list[Kind]:
    total = layer_count(config)
    many = config.get("num_experts", 16) > 1
    return [
        ("full_attention" if attention else "mamba1", "moe" if experts and many else "mlp")
        for attention, experts in zip(ATTENTION.chosen(config, total), EXPERTS.chosen(config, total), strict=True)
    ]


FAMILY = Family(names=("jamba",), kinds=kinds, keys=(ATTENTION, EXPERTS))
