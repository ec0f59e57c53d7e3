"""DeepSeek-V3.2: V3 with sparse attention; the indexer sits in every layer."""

from __future__ import annotations

from bitgate.tools.slice.family import Family, Kind, layer_count
from bitgate.tools.slice.keys import Json, PerLayer, Prefix
from bitgate.tools.slice.kinds import after_dense, listed, mlp_types, paired


def kinds(config: Json) -> list[Kind]:
    total = layer_count(config)
    attention = listed(config, "layer_types", total, lambda layer: "indexed_attention")
    return paired(attention, mlp_types(config, total, after_dense(config, 3)))


FAMILY = Family(
    names=("deepseek_v32",),
    kinds=kinds,
    keys=(
        PerLayer("layer_types"),
        PerLayer("mlp_layer_types"),
        PerLayer("moe_layer_freq"),
        Prefix("first_k_dense_replace", 3),
    ),
    mtp="num_nextn_predict_layers",
)
