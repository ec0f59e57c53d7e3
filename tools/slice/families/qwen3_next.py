"""Qwen3-Next: gated delta net with full attention on each fourth layer, experts, MTP under `mtp.`."""

from __future__ import annotations

from bitgate.tools.slice.family import Family, Kind, layer_count
from bitgate.tools.slice.keys import Explicit, Json
from bitgate.tools.slice.kinds import QwenDense, every, listed, paired, qwen_dense
from bitgate.tools.slice.operators import rule


def types(config: Json) -> list[str]:
    otherwise = every(config, "full_attention_interval", 4, "full_attention", "linear_attention")
    return listed(config, "layer_types", layer_count(config), otherwise)


def kinds(config: Json) -> list[Kind]:
    return paired(types(config), ["mlp" if dense else "moe" for dense in qwen_dense(config)])


FAMILY = Family(
    names=("qwen3_next",),
    kinds=kinds,
    keys=(QwenDense(), Explicit("layer_types", types, ("full_attention_interval",))),
    mtp_keys=("num_nextn_predict_layers",),
    rules=(rule(r"linear_attn\.norm", "norm"),),
)
