"""DeepSeek-V3: MLA, leading dense layers, experts, MTP as the layers after the last."""

from __future__ import annotations

from bitgate.tools.slice.family import Family, Kind, layer_count
from bitgate.tools.slice.keys import Json, PerLayer, Prefix
from bitgate.tools.slice.kinds import after_dense


def kinds(config: Json) -> list[Kind]:
    mlp = after_dense(config, 3)
    return [("mla", mlp(layer)) for layer in range(layer_count(config))]


FAMILY = Family(
    names=("deepseek_v3", "kimi_k2"),
    kinds=kinds,
    keys=(PerLayer("moe_layer_freq"), Prefix("first_k_dense_replace", 3)),
    mtp="num_nextn_predict_layers",
)
