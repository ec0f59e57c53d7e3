"""Zamba2: Mamba-2, and hybrid layers that share a few transformer blocks in turn, each with its own adapters.

The file holds each shared block once, at the first layer that uses it, and numbers adapters by hybrid layer. A slice
holds it at the first kept layer that uses it, wherever the file had it.
"""

from __future__ import annotations

import re

from bitgate.tools.slice.family import LAYER, Family, Kind, layer_count
from bitgate.tools.slice.keys import Indices, Json, PerLayer, Selection
from bitgate.tools.slice.kinds import LEGACY
from bitgate.tools.slice.operators import rule

ADAPTER = re.compile(r"(.*_adapter_list\.)(\d+)(\..*)")


def types(config: Json) -> list[str]:
    value = config.get("layers_block_type")
    if value is not None:
        return [LEGACY.get(str(item), str(item)) for item in value]
    hybrid = config["hybrid_layer_ids"]
    return ["hybrid" if layer in hybrid else "linear_attention" for layer in range(layer_count(config))]


def kinds(config: Json) -> list[Kind]:
    return [("mamba2", "shared_attention", "shared_mlp") if word == "hybrid" else ("mamba2",) for word in types(config)]


def rename(config: Json, name: str, sel: Selection) -> str | None:
    """Where a shared block's tensor goes; an empty string keeps the ordinary renumbering."""
    found = LAYER.fullmatch(name)
    if found is None or "shared_transformer." not in found["rest"]:
        return ""
    hybrids = [layer for layer, word in enumerate(types(config)) if word == "hybrid"]
    blocks, kept = config.get("num_mem_blocks", 1), [layer for layer in sel.kept if layer in hybrids]
    home = hybrids.index(int(found["layer"]))
    users = [place for place, layer in enumerate(kept) if hybrids.index(layer) % blocks == home % blocks]
    if not users or home >= blocks:
        return None
    rest = _adapter(found["rest"], [hybrids.index(layer) for layer in kept])
    return None if rest is None else f"{found['head']}layers.{sel.new(kept[users[0]])}.{rest}"


def _adapter(rest: str, ordinals: list[int]) -> str | None:
    found = ADAPTER.fullmatch(rest)
    if found is None:
        return rest
    old = int(found[2])
    return f"{found[1]}{ordinals.index(old)}{found[3]}" if old in ordinals else None


FAMILY = Family(
    names=("zamba2",),
    kinds=kinds,
    keys=(PerLayer("layers_block_type"), Indices("hybrid_layer_ids")),
    rules=(rule(r".*adapter_list\.\d+\.\d+", "adapter"), rule(r"linear", "dense_linear", "replicated")),
    shared_tensors=r"shared_transformer\..*",
    rename=rename,
)
