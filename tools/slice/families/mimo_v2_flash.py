"""MiMo-V2-Flash: sliding and full attention, dense then experts; the hub's lists are 0 and 1, ours are words."""

from __future__ import annotations

from bitgate.tools.slice.family import Family, Kind, layer_count
from bitgate.tools.slice.keys import Json, PerLayer
from bitgate.tools.slice.kinds import listed, mlp_types, paired


def types(config: Json) -> list[str]:
    hybrid, total = config.get("hybrid_layer_pattern"), layer_count(config)
    if config.get("layer_types") is None and hybrid is not None:
        return ["sliding_attention" if item else "full_attention" for item in hybrid][:total]
    default = ("sliding_attention", "full_attention")
    return listed(config, "layer_types", total, lambda layer: default[layer == 0 or (layer + 1) % 6 == 0])


def kinds(config: Json) -> list[Kind]:
    experts = config.get("moe_layer_freq")
    choice = experts if isinstance(experts, list) else [0, *[1] * (layer_count(config) - 1)]
    return paired(
        types(config), mlp_types(config, layer_count(config), lambda layer: "moe" if choice[layer] else "dense")
    )


def written(config: Json) -> list[str]:
    return ["sparse" if kind[1] == "moe" else "dense" for kind in kinds(config)]


FAMILY = Family(
    names=("mimo_v2_flash", "mimo_v2"),
    kinds=kinds,
    keys=(
        PerLayer("layer_types"),
        PerLayer("mlp_layer_types"),
        PerLayer("hybrid_layer_pattern"),
        PerLayer("moe_layer_freq"),
    ),
    mtp_keys=("num_nextn_predict_layers",),
)
