"""Qwen3.5: gated delta net and full attention in a nested text configuration; vision tower kept whole."""

from __future__ import annotations

from bitgate.tools.slice.family import Family, Kind, layer_count
from bitgate.tools.slice.keys import Explicit, Json
from bitgate.tools.slice.kinds import every, listed


def types(config: Json) -> list[str]:
    otherwise = every(config, "full_attention_interval", 4, "full_attention", "linear_attention")
    return listed(config, "layer_types", layer_count(config), otherwise)


def kinds(config: Json) -> list[Kind]:
    mlp = "moe" if "moe" in str(config.get("model_type")) or config.get("num_experts") else "mlp"
    return [(word, mlp) for word in types(config)]


FAMILY = Family(
    names=("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
    kinds=kinds,
    keys=(Explicit("layer_types", types, ("full_attention_interval",)),),
    mtp_keys=("mtp_num_hidden_layers",),
)
