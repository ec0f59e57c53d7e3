"""Kimi Linear: delta attention with MLA on some layers; its lists count layers from one."""

from __future__ import annotations

from dataclasses import dataclass

from bitgate.tools.slice.family import Family, Kind, layer_count
from bitgate.tools.slice.keys import Indices, Json, PerLayer, Prefix, Selection, lookup
from bitgate.tools.slice.kinds import after_dense, listed, mlp_types, paired
from bitgate.tools.slice.operators import rule

FULL, KDA = "linear_attn_config.full_attn_layers", "linear_attn_config.kda_layers"


def types(config: Json) -> list[str]:
    full = lookup(config, FULL)
    if full is not None and config.get("layer_types") is None:
        return ["full_attention" if i + 1 in full else "linear_attention" for i in range(layer_count(config))]
    return listed(
        config,
        "layer_types",
        layer_count(config),
        lambda layer: "full_attention" if layer and layer % 4 == 0 else "linear_attention",
    )


def kinds(config: Json) -> list[Kind]:
    words = ["mla" if word == "full_attention" else "kda" for word in types(config)]
    return paired(words, mlp_types(config, len(words), after_dense(config, 1)))


@dataclass(frozen=True)
class LayerTypes:
    """Written out unless `linear_attn_config` says it."""

    names: tuple[str, ...] = ("layer_types",)

    def rewrite(self, config: Json, sel: Selection) -> None:
        if lookup(config, FULL) is None or config.get("layer_types") is not None:
            full = types(config)
            config["layer_types"] = [full[layer] for layer in sel.kept]


FAMILY = Family(
    names=("kimi_linear",),
    kinds=kinds,
    keys=(
        LayerTypes(),
        Indices(FULL, base=1),
        Indices(KDA, base=1),
        PerLayer("mlp_layer_types"),
        PerLayer("moe_layer_freq"),
        Prefix("first_k_dense_replace", 1),
    ),
    mtp="num_nextn_predict_layers",
    rules=(
        rule(r"block_sparse_moe\.shared_experts\.(gate_proj|up_proj)", "shared_experts", "column"),
        rule(r"self_attn\.[qkv]_conv", "conv", "column"),
    ),
)
