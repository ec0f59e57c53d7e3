"""GLM-5: sparse attention whose indices some layers share with the last layer that has an indexer.

transformers reads `indexer_types`, vLLM `index_topk_pattern`; both are written, and the period they replace goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bitgate.tools.slice.family import Family, Kind, layer_count
from bitgate.tools.slice.keys import Json, PerLayer, Prefix, Selection
from bitgate.tools.slice.kinds import after_dense, mlp_types

LETTERS = {"F": "full", "S": "shared"}


def indexers(config: Json) -> list[str]:
    total, types, pattern = layer_count(config), config.get("indexer_types"), config.get("index_topk_pattern")
    if types is not None:
        return [str(item) for item in types][:total]
    if pattern is not None:
        return [LETTERS.get(item, item) for item in pattern][:total]
    step, offset = max(config.get("index_topk_freq", 1), 1), config.get("index_skip_topk_offset", 2)
    return ["full" if max(layer - offset + 1, 0) % step == 0 else "shared" for layer in range(total)]


@dataclass(frozen=True)
class Indexers:
    names: tuple[str, ...] = ("indexer_types", "index_topk_pattern", "index_topk_freq", "index_skip_topk_offset")

    def rewrite(self, config: Json, sel: Selection) -> None:
        full = indexers(config)
        kept = [full[layer] for layer in sel.kept]
        config["indexer_types"] = kept
        config["index_topk_pattern"] = "".join("F" if item == "full" else "S" for item in kept)
        config.pop("index_topk_freq", None)
        config.pop("index_skip_topk_offset", None)


def kinds(config: Json) -> list[Kind]:
    attention = {"full": "indexed_attention", "shared": "indexed_attention_shared"}
    mlp = mlp_types(config, layer_count(config), after_dense(config, 3))
    return [(attention[index], word) for index, word in zip(indexers(config), mlp, strict=True)]


def needs(config: Json, found: list[Kind]) -> Mapping[int, tuple[int, ...]]:
    needed: dict[int, tuple[int, ...]] = {}
    producer = None
    for layer, kind in enumerate(found):
        if kind[0] == "indexed_attention":
            producer = layer
        elif producer is not None:
            needed[layer] = (producer,)
    return needed


FAMILY = Family(
    names=("glm_moe_dsa",),
    kinds=kinds,
    keys=(
        Indexers(),
        PerLayer("layer_types"),
        PerLayer("mlp_layer_types"),
        PerLayer("moe_layer_freq"),
        Prefix("first_k_dense_replace", 3),
    ),
    mtp="num_nextn_predict_layers",
    needs=needs,
)
