"""Qwen3-MoE: experts on most layers."""

from __future__ import annotations

from bitgate.tools.slice.family import Family, Kind
from bitgate.tools.slice.keys import Json, Prefix
from bitgate.tools.slice.kinds import QwenDense, qwen_dense


def kinds(config: Json) -> list[Kind]:
    return [("full_attention", "mlp" if dense else "moe") for dense in qwen_dense(config)]


FAMILY = Family(names=("qwen3_moe",), kinds=kinds, keys=(QwenDense(), Prefix("max_window_layers")))
