"""Gemma 4: the last layers reuse the KV of the last layer of their type that has its own; per-layer embeddings.

transformers forces the last layer to full attention, so a slice must end on one (the table's re-reading sees it).
"""

from __future__ import annotations

from collections.abc import Mapping

from bitgate.tools.slice.family import Family, Kind, Strided, layer_count
from bitgate.tools.slice.keys import Explicit, IndexedMap, Json, PerLayer, Suffix
from bitgate.tools.slice.kinds import every, listed
from bitgate.tools.slice.operators import rule


def types(config: Json) -> list[str]:
    found = listed(config, "layer_types", layer_count(config), every({}, "", 6, "full_attention", "sliding_attention"))
    return [*found[:-1], "full_attention"]


def shared_from(config: Json) -> int:
    return layer_count(config) - (config.get("num_kv_shared_layers") or 0)


def kinds(config: Json) -> list[Kind]:
    mlp = ("mlp", "moe") if config.get("enable_moe_block") else ("mlp",)
    first = shared_from(config)
    return [
        (word, *mlp, *(("kv_shared",) if layer >= first else ("kv_store",) if layer in sources(config) else ()))
        for layer, word in enumerate(types(config))
    ]


def sources(config: Json) -> set[int]:
    first, words = shared_from(config), types(config)
    if first == len(words):
        return set()
    return {max(i for i in range(first) if words[i] == word) for word in set(words[first:])}


def needs(config: Json, found: list[Kind]) -> Mapping[int, tuple[int, ...]]:
    words, producers = types(config), sources(config)
    return {
        layer: tuple(i for i in producers if words[i] == words[layer])
        for layer, kind in enumerate(found)
        if "kv_shared" in kind
    }


FAMILY = Family(
    names=("gemma4", "gemma4_text"),
    kinds=kinds,
    keys=(
        Explicit("layer_types", types),
        PerLayer("kv_sharing_modes"),
        IndexedMap("per_layer_config"),
        Suffix("num_kv_shared_layers"),
    ),
    needs=needs,
    strided=(
        Strided(r"(.*\.)?embed_tokens_per_layer\.weight", 1),
        Strided(r"(.*\.)?per_layer_model_projection\.weight", 0),
    ),
    rules=(
        rule(r"(.*\.)?embed_tokens_per_layer|(.*\.)?per_layer_model_projection", "per_layer_embedding"),
        rule(r"(.*\.)?per_layer_projection_norm", "norm"),
        rule(r"per_layer_input_gate|per_layer_projection", "per_layer_embedding"),
        rule(r"router(\..*)?", "router"),
        rule(r"experts(\..*)?", "experts", "expert"),
    ),
)
