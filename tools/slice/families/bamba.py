"""Bamba: Mamba-2 with attention on listed layers."""

from __future__ import annotations

from bitgate.tools.slice.family import Family, Kind, layer_count
from bitgate.tools.slice.keys import Indices, Json


def kinds(config: Json) -> list[Kind]:
    attention = config.get("attn_layer_indices") or ()
    return [("full_attention" if i in attention else "mamba2", "mlp") for i in range(layer_count(config))]


FAMILY = Family(names=("bamba",), kinds=kinds, keys=(Indices("attn_layer_indices"),))
