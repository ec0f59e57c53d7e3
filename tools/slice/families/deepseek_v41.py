"""DeepSeek-V4.1, as far as its configuration tells: layers read KV, indices and candidates from source layers.

Sources: vLLM's deepseek_v41/attention.py: KV and index lists name the layers that publish; the others reuse the most
recent one at or below them, and candidates come from one layer for all above it.
"""

from __future__ import annotations

from collections.abc import Mapping

from bitgate.tools.slice.families.deepseek_v4 import RATIOS
from bitgate.tools.slice.family import Family, Kind, layer_count
from bitgate.tools.slice.keys import Index, Indices, Json, PerLayer, Prefix
from bitgate.tools.slice.kinds import listed
from bitgate.tools.slice.operators import rule

SOURCES = ("kv_source_layer_ids", "index_source_layer_ids")


def attention(config: Json) -> list[str]:
    total, ratios = layer_count(config), config.get("compress_ratios")
    if config.get("layer_types") is None and ratios is not None:
        return [RATIOS.get(item, "heavily_compressed_attention") for item in ratios][:total]
    return listed(config, "layer_types", total, lambda layer: "compressed_sparse_attention")


def kinds(config: Json) -> list[Kind]:
    hashed = config.get("num_hash_layers", 0)
    found: list[Kind] = []
    for layer, word in enumerate(attention(config)):
        marks = [name.split("_")[0] + "_source" for name in SOURCES if layer in (config.get(name) or ())]
        marks += ["candidate_source"] if layer == config.get("candidate_source_layer_id", -1) else []
        marks += ["engram"] if layer in (config.get("engram_layer_ids") or ()) else []
        found.append((word, "hash_moe" if layer < hashed else "moe", *marks))
    return found


def needs(config: Json, found: list[Kind]) -> Mapping[int, tuple[int, ...]]:
    candidate = config.get("candidate_source_layer_id", -1)
    needed: dict[int, tuple[int, ...]] = {}
    for layer, kind in enumerate(found):
        if kind[0] == "sliding_attention":
            continue
        sources = [max((s for s in config.get(name) or () if s <= layer), default=layer) for name in SOURCES]
        sources += [candidate] if 0 <= candidate < layer else []
        needed[layer] = tuple(sorted(set(sources) - {layer}))
    return needed


FAMILY = Family(
    names=("deepseek_v41",),
    kinds=kinds,
    keys=(
        PerLayer("layer_types"),
        PerLayer("mlp_layer_types"),
        PerLayer("compress_ratios"),
        Prefix("num_hash_layers", 0),
        Indices("kv_source_layer_ids"),
        Indices("index_source_layer_ids"),
        Indices("engram_layer_ids"),
        Index("candidate_source_layer_id"),
    ),
    mtp="num_nextn_predict_layers",
    needs=needs,
    rules=(rule(r"engram(\..*)?", "per_layer_embedding"),),
    detect=lambda config: "kv_source_layer_ids" in config and "index_source_layer_ids" in config,
    notes=(
        "Read from the configuration alone: no public weights were cut, and transformers does not know the family.",
    ),
)
