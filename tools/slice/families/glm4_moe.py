"""GLM-4.5 and 4.6: one leading dense layer, experts, MTP as the layer after the last."""

from __future__ import annotations

from bitgate.tools.slice.family import Family, Kind, layer_count
from bitgate.tools.slice.keys import Json, PerLayer, Prefix
from bitgate.tools.slice.kinds import after_dense


def kinds(config: Json) -> list[Kind]:
    mlp = after_dense(config, 1)
    return [("full_attention", mlp(layer)) for layer in range(layer_count(config))]


FAMILY = Family(
    names=("glm4_moe",),
    kinds=kinds,
    keys=(PerLayer("moe_layer_freq"), Prefix("first_k_dense_replace", 1)),
    mtp="num_nextn_predict_layers",
)
