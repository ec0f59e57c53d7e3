"""Nemotron-H and Nemotron 3: one operator a layer (Mamba-2, attention, MLP, experts), from a pattern or a list.

vLLM takes the width of the n-th MLP layer from a list-valued size, so such a list follows the kept MLP layers.
"""

from __future__ import annotations

from bitgate.tools.slice.family import Family, Kind
from bitgate.tools.slice.keys import Json, Ordinal, PerLayer
from bitgate.tools.slice.kinds import LEGACY, PATTERN

WORDS = {"linear_attention": "mamba2"}


def kinds(config: Json) -> list[Kind]:
    types = config.get("layers_block_type") or config.get("layer_types")
    if types is not None:
        words = [LEGACY.get(str(item), str(item)) for item in types]
        return [(WORDS.get(word, word),) for word in words]
    return [(PATTERN[letter],) for letter in config["hybrid_override_pattern"]]


def members(operator: str) -> Ordinal:
    name = {"mlp": "intermediate_size", "moe": "moe_intermediate_size"}[operator]
    return Ordinal(name, lambda config: [kind == (operator,) for kind in kinds(config)])


FAMILY = Family(
    names=("nemotron_h",),
    kinds=kinds,
    keys=(
        members("mlp"),
        members("moe"),
        PerLayer("layers_block_type"),
        PerLayer("layer_types"),
        PerLayer("hybrid_override_pattern"),
    ),
    mtp_keys=("num_nextn_predict_layers",),
)
