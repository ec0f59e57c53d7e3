"""Granite 4: Mamba-2 and full attention, shared MLP and experts; its multipliers do not depend on depth."""

from __future__ import annotations

from bitgate.tools.slice.family import Family, Kind, layer_count
from bitgate.tools.slice.keys import Json, PerLayer
from bitgate.tools.slice.kinds import listed


def kinds(config: Json) -> list[Kind]:
    name = "layer_types" if config.get("layer_types") is not None else "layers_block_type"
    types = listed(config, name, layer_count(config), lambda layer: "linear_attention")
    mlp = "moe" if config.get("num_local_experts", 8) else "mlp"
    return [("mamba2" if word == "linear_attention" else word, mlp) for word in types]


FAMILY = Family(names=("granitemoehybrid",), kinds=kinds, keys=(PerLayer("layer_types"), PerLayer("layers_block_type")))
