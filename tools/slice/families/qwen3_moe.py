"""Qwen3-MoE: `decoder_sparse_step` is written out as `mlp_only_layers`, so that a window may start anywhere."""

from __future__ import annotations

from dataclasses import dataclass

from bitgate.tools.slice.family import Family, Kind, layer_count
from bitgate.tools.slice.keys import Json, Prefix, Selection


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
    return [("full_attention", "mlp" if dense else "moe") for dense in dense_layers(config)]


FAMILY = Family(names=("qwen3_moe", "qwen2_moe"), kinds=kinds, keys=(DenseLayers(), Prefix("max_window_layers")))
