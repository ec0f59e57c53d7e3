"""DeepSeek-V4: sliding, compressed-sparse and heavily compressed attention, hash-routed leading layers, mHC.

Both namings: native (`layers.N.attn.wq_a`, MTP under `mtp.`) and as transformers saves it. `compress_ratios` has an
entry for each MTP layer after those of the layers.
"""

from __future__ import annotations

from bitgate.tools.slice.family import Family, Kind, layer_count
from bitgate.tools.slice.keys import Json, PerLayer, Prefix
from bitgate.tools.slice.kinds import listed, paired

RATIOS = {0: "sliding_attention", 1: "sliding_attention", 4: "compressed_sparse_attention"}


def attention(config: Json) -> list[str]:
    total, ratios = layer_count(config), config.get("compress_ratios")
    if config.get("layer_types") is None and ratios is not None:
        return [RATIOS.get(item, "heavily_compressed_attention") for item in ratios][:total]
    default = ("heavily_compressed_attention", "compressed_sparse_attention")
    return listed(config, "layer_types", total, lambda layer: default[layer >= 2 and (layer - 2) % 2])


def kinds(config: Json) -> list[Kind]:
    hashed = config.get("num_hash_layers", 3)
    mlp = listed(config, "mlp_layer_types", layer_count(config), lambda i: "hash_moe" if i < hashed else "moe")
    return paired(attention(config), mlp)


FAMILY = Family(
    names=("deepseek_v4",),
    kinds=kinds,
    keys=(
        PerLayer("layer_types"),
        PerLayer("mlp_layer_types"),
        PerLayer("compress_ratios"),
        Prefix("num_hash_layers", 3),
    ),
    mtp="num_nextn_predict_layers",
)
