"""Makes tiny random checkpoints of every family, in one process of the engine interpreter: `make_tiny.py OUT`.

Where transformers writes another naming than the hub has, or knows no MTP, a checkpoint in the published naming is
derived by hand. Quantised ones are derived from plain ones by real quantisation of their weights.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any

import torch
from quantised import QUANTISED
from safetensors.torch import load_file, save_file
from tiny_configs import CONFIGS, FULL_PRECISION, IMAGE_TEXT

Tensors = dict[str, torch.Tensor]


def make(out: str, name: str) -> None:
    import transformers
    from transformers import CONFIG_MAPPING

    torch.manual_seed(0)
    config = CONFIG_MAPPING[name](**CONFIGS[name])
    dtype = torch.float32 if name in FULL_PRECISION else torch.bfloat16
    config.dtype = dtype
    auto = transformers.AutoModelForImageTextToText if name in IMAGE_TEXT else transformers.AutoModelForCausalLM
    model = auto.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, 0.05)
    model.to(dtype).save_pretrained(os.path.join(out, name), max_shard_size="60KB")


def read(path: str) -> tuple[dict[str, Any], Tensors]:
    with open(os.path.join(path, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    shards = sorted(name for name in os.listdir(path) if name.endswith(".safetensors"))
    return config, {key: value for name in shards for key, value in load_file(os.path.join(path, name)).items()}


def write(path: str, config: dict[str, Any], tensors: Tensors, shards: int = 3, **files: str) -> None:
    """In `shards` files with an index, tensors dealt out in the order of their names."""
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    names, weight_map = sorted(tensors), {}
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name].contiguous() for name in names[number::shards]}
        save_file(part, os.path.join(path, file), metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(part, file))
    total = sum(tensor.nbytes for tensor in tensors.values())
    documents = {
        "config.json": config,
        "model.safetensors.index.json": {"metadata": {"total_size": total, "stale": 7}, "weight_map": weight_map},
    }
    for name, document in documents.items():
        with open(os.path.join(path, name), "w", encoding="utf-8") as file:
            json.dump(document, file)
    for name, text in files.items():
        with open(os.path.join(path, name.replace("__", ".")), "w", encoding="utf-8") as file:
            file.write(text)


def like(tensors: Tensors, prefix: str, new: str) -> Tensors:
    """Copies of the tensors under `prefix`, renamed."""
    return {
        new + name.removeprefix(prefix): value.clone() for name, value in tensors.items() if name.startswith(prefix)
    }


def appended_mtp(last: str, new: str) -> Callable[[dict[str, Any], Tensors], None]:
    """An MTP block in DeepSeek's naming: a layer after the last with its own norms, projection and head."""

    def change(config: dict[str, Any], tensors: Tensors) -> None:
        hidden = config["hidden_size"]
        tensors |= like(tensors, last, new)
        tensors[f"{new}eh_proj.weight"] = torch.randn(hidden, 2 * hidden).bfloat16()
        for norm in ("enorm", "hnorm", "shared_head.norm"):
            tensors[f"{new}{norm}.weight"] = torch.ones(hidden).bfloat16()
        for big in ("embed_tokens", "shared_head.head"):
            tensors[f"{new}{big}.weight"] = torch.randn(config["vocab_size"], hidden).bfloat16()
        config["num_nextn_predict_layers"] = 1

    return change


def prefixed_mtp(last: str, new: str, key: str) -> Callable[[dict[str, Any], Tensors], None]:
    def change(config: dict[str, Any], tensors: Tensors) -> None:
        tensors |= like(tensors, last, new)
        (config.get("text_config") or config)[key] = 1

    return change


def nemotron_hub(config: dict[str, Any], tensors: Tensors) -> None:
    letters = {"linear_attention": "M", "moe": "E", "full_attention": "*", "mlp": "-"}
    types = config.pop("layers_block_type")
    config["hybrid_override_pattern"] = "".join(letters[item] for item in types)
    config["num_hidden_layers"] = len(types)
    tensors |= like(tensors, "backbone.layers.14.", "mtp.layers.0.")
    config["num_nextn_predict_layers"], config["mtp_hybrid_override_pattern"] = 1, "M"


def deepseek_v4_native(config: dict[str, Any], tensors: Tensors) -> None:
    """The published naming: no `model.` prefix, MTP under `mtp.`, ratios with an entry for it."""
    for name in list(tensors):
        new = name.removeprefix("model.").replace("hc_head.hc_", "hc_head_").replace("embed_tokens.", "embed.")
        tensors[new] = tensors.pop(name)
    tensors |= like(tensors, "layers.9.", "mtp.0.")
    ratios = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
    config["compress_ratios"] = [*(ratios[item] for item in config.pop("layer_types")), 0]
    config["num_hash_layers"] = config.pop("mlp_layer_types").count("hash_moe")


def deepseek_v41(config: dict[str, Any], tensors: Tensors) -> None:
    """As vLLM reads it: layers publish KV and indices for the layers above them."""
    deepseek_v4_native(config, tensors)
    config |= {"kv_source_layer_ids": [2, 3, 6], "index_source_layer_ids": [2, 6], "candidate_source_layer_id": 2}
    config |= {"engram_layer_ids": [1], "hc_pre_from_prev_sublayer": True, "model_type": "deepseek_v41"}
    config["architectures"], config["num_hash_layers"] = ["DeepseekV41ForCausalLM"], 0
    for name in list(tensors):
        found = name.split(".")
        source = found[0] == "layers" and int(found[1]) in (2, 6)
        if (".indexer." in name and not source) or name.endswith("tid2eid"):
            del tensors[name]
    tensors["layers.1.engram.embed_tokens.weight"] = torch.randn(16, 8)


def kimi_hub(config: dict[str, Any], tensors: Tensors) -> None:
    types = config.pop("layer_types")
    config["linear_attn_config"] = {
        "full_attn_layers": [i + 1 for i, item in enumerate(types) if item == "full_attention"],
        "kda_layers": [i + 1 for i, item in enumerate(types) if item == "linear_attention"],
        "head_dim": config["linear_head_dim"],
        "num_heads": config["linear_num_heads"],
        "short_conv_kernel_size": config["linear_conv_kernel_dim"],
    }
    config["first_k_dense_replace"] = config.pop("mlp_layer_types").count("dense")


def mimo_hub(config: dict[str, Any], tensors: Tensors) -> None:
    config["hybrid_layer_pattern"] = [int(item == "sliding_attention") for item in config["layer_types"]]
    config["moe_layer_freq"] = [int(item == "sparse") for item in config["mlp_layer_types"]]
    tensors |= like(tensors, "model.layers.0.", "model.mtp.layers.0.")


def without_buffers(config: dict[str, Any], tensors: Tensors) -> None:
    for name in list(tensors):
        if name.rsplit(".", 1)[-1] in ("slope_rate", "query_decay", "key_decay", "diagonal_decay"):
            del tensors[name]


def interval(config: dict[str, Any], tensors: Tensors) -> None:
    """The hub's Qwen3-Next has no list, only the interval."""
    del config["layer_types"]
    config["full_attention_interval"] = 4


DERIVED: dict[str, tuple[str, Callable[[dict[str, Any], Tensors], None]]] = {
    "deepseek_v3_mtp": ("deepseek_v3", appended_mtp("model.layers.8.", "model.layers.9.")),
    "glm4_moe_mtp": ("glm4_moe", appended_mtp("model.layers.7.", "model.layers.8.")),
    "glm_moe_dsa_mtp": ("glm_moe_dsa", appended_mtp("model.layers.13.", "model.layers.14.")),
    "qwen3_next_mtp": ("qwen3_next", prefixed_mtp("model.layers.11.", "mtp.layers.0.", "num_nextn_predict_layers")),
    "qwen3_next_interval": ("qwen3_next", interval),
    "qwen3_5_mtp": (
        "qwen3_5",
        prefixed_mtp("model.language_model.layers.11.", "mtp.layers.0.", "mtp_num_hidden_layers"),
    ),
    "nemotron_h_hub": ("nemotron_h", nemotron_hub),
    "deepseek_v4_native": ("deepseek_v4", deepseek_v4_native),
    "deepseek_v41": ("deepseek_v4", deepseek_v41),
    "kimi_linear_hub": ("kimi_linear", kimi_hub),
    "mimo_v2_flash_hub": ("mimo_v2_flash", mimo_hub),
    "minimax_without_buffers": ("minimax", without_buffers),
}


def main(out: str) -> None:
    os.makedirs(out, exist_ok=True)
    for name in CONFIGS:
        make(out, name)
    for name, (base, change) in DERIVED.items():
        config, tensors = read(os.path.join(out, base))
        change(config, tensors)
        write(os.path.join(out, name), config, tensors)
    for name, (base, quantise) in QUANTISED.items():
        config, tensors = read(os.path.join(out, base))
        files = quantise(config, tensors) or {}
        write(os.path.join(out, name), config, tensors, **files)


if __name__ == "__main__":
    main(sys.argv[1])
