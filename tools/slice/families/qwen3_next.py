"""Qwen3-Next: gated delta net with full attention on each fourth layer, experts, MTP under `mtp.`."""

from __future__ import annotations

from dataclasses import dataclass

from bitgate.tools.slice.family import Family, Kind, layer_count
from bitgate.tools.slice.keys import Explicit, Json, Selection
from bitgate.tools.slice.kinds import every, listed, paired
from bitgate.tools.slice.operators import rule


def types(config: Json) -> list[str]:
    otherwise = every(config, "full_attention_interval", 4, "full_attention", "linear_attention")
    return listed(config, "layer_types", layer_count(config), otherwise)


def dense_layers(config: Json) -> list[bool]:
    step, only = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers") or []
    return [layer in only or (layer + 1) % step != 0 for layer in range(layer_count(config))]


@dataclass(frozen=True)
class DenseLayers:
    names: tuple[str, ...] = ("mlp_only_layers", "decoder_sparse_step")

    def rewrite(self, config: Json, sel: Selection) -> None:
        dense = dense_layers(config)
        config["mlp_only_layers"] = [new for new, old in enumerate(sel.kept) if dense[old]]
        config["decoder_sparse_step"] = 1


def kinds(config: Json) -> list[Kind]:
    return paired(types(config), ["mlp" if dense else "moe" for dense in dense_layers(config)])


FAMILY = Family(
    names=("qwen3_next",),
    kinds=kinds,
    keys=(DenseLayers(), Explicit("layer_types", types, ("full_attention_interval",))),
    mtp_keys=("num_nextn_predict_layers",),
    rules=(rule(r"linear_attn\.norm", "norm"),),
)
