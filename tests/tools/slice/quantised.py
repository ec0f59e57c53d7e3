"""Real quantisation of tiny checkpoints into the published layouts, with lists that name layers in every way."""

from __future__ import annotations

import json
import re
from typing import Any

import torch

Tensors = dict[str, torch.Tensor]
PROJECTION = re.compile(r".*(_proj|_proj_with_mqa|in_proj|out_proj)\.weight")


def linear(name: str, tensor: torch.Tensor) -> bool:
    return bool(PROJECTION.fullmatch(name)) and tensor.dim() == 2 and ".visual." not in name


def module(name: str) -> str:
    return name.removesuffix(".weight")


def to_fp8(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (weight.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)


def block_fp8(config: dict[str, Any], tensors: Tensors) -> None:
    """DeepSeek: 128x128 blocks with `weight_scale_inv`; some layers' projections are left out by name."""
    spared = ["lm_head", "model.layers.2.self_attn.o_proj", "model.layers.7.self_attn.o_proj"]
    for name in [name for name, tensor in tensors.items() if linear(name, tensor) and module(name) not in spared]:
        weight = tensors[name]
        blocks = [-(-size // 128) for size in weight.shape]
        scale = torch.full(blocks, float(weight.abs().max()) / 448)
        tensors[name] = to_fp8(weight, scale.max())
        tensors[f"{name}_scale_inv"] = scale
    config["quantization_config"] = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": spared,
    }


def compressed(config: dict[str, Any], tensors: Tensors) -> None:
    """compressed-tensors W8A8: a regular expression with layer numbers, a plain name, a class name."""
    ignore = ["lm_head", r"re:.*layers\.(0|7)\.mlp\..*", "model.layers.1.self_attn.q_proj", "re:.*self_attn.v_proj$"]
    skip = re.compile(r"lm_head|.*layers\.(0|7)\.mlp\..*|model\.layers\.1\.self_attn\.q_proj|.*self_attn.v_proj")
    for name in [name for name, tensor in tensors.items() if linear(name, tensor) and not skip.fullmatch(module(name))]:
        scale = tensors[name].float().abs().amax(dim=1, keepdim=True) / 448
        tensors[name] = to_fp8(tensors[name], scale)
        tensors[f"{name}_scale"] = scale.bfloat16()
    weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
    inputs = {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}},
        "ignore": ignore,
    }


def nvfp4_mixed(config: dict[str, Any], tensors: Tensors) -> dict[str, str]:
    """ModelOpt, mixed: NVFP4 experts, FP8 Mamba projections except in layers 2 and 9, attention left alone."""
    layers: dict[str, dict[str, Any]] = {}
    for name in [name for name, tensor in tensors.items() if linear(name, tensor)]:
        layer, weight = int(name.split(".")[2]), tensors[name]
        if ".experts." in name or "shared_experts" in name:
            tensors[name] = torch.randint(0, 256, (weight.shape[0], weight.shape[1] // 2), dtype=torch.uint8)
            tensors[f"{name}_scale"] = torch.ones(weight.shape[0], max(weight.shape[1] // 16, 1)).to(
                torch.float8_e4m3fn
            )
            tensors[f"{name}_scale_2"] = torch.tensor(1.0)
            tensors[f"{module(name)}.input_scale"] = torch.tensor(1.0)
            layers[module(name)] = {"quant_algo": "NVFP4", "group_size": 16}
        elif "in_proj" in name and layer not in (2, 9):
            scale = weight.float().abs().max() / 448
            tensors[name] = to_fp8(weight, scale)
            tensors[f"{name}_scale"], tensors[f"{module(name)}.input_scale"] = scale, torch.tensor(1.0)
            layers[module(name)] = {"quant_algo": "FP8"}
    for layer in (5, 12):
        tensors[f"backbone.layers.{layer}.mixer.k_proj.k_scale"] = torch.tensor(1.0)
    exclude = ["lm_head", "backbone.layers.5*", "backbone.layers.12*", "*.conv1d*", "backbone.layers.9.mixer.in_proj"]
    shared = {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "FP8", "quantized_layers": layers}
    config["quantization_config"] = {"quant_method": "modelopt", "ignore": exclude, **shared}
    own = {"producer": {"name": "modelopt", "version": "0.40"}, "quantization": {"exclude_modules": exclude, **shared}}
    return {"hf_quant_config__json": json.dumps(own)}


def awq(config: dict[str, Any], tensors: Tensors) -> None:
    spared = ("model.layers.1.mlp", "model.layers.6.")
    for name in [n for n, t in tensors.items() if linear(n, t) and not n.startswith((*spared, "lm_head"))]:
        _packed(tensors, name, packed_dim=1)
    config["quantization_config"] = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": 16,
        "version": "gemm",
        "zero_point": True,
        "modules_to_not_convert": ["lm_head", "model.layers.1.mlp", "model.layers.6."],
    }


def gptq(config: dict[str, Any], tensors: Tensors) -> None:
    skip = re.compile(r"model\.layers\.[0-1]\.self_attn\.|model\.layers\.5\.")
    for name in [n for n, t in tensors.items() if linear(n, t) and not skip.match(n) and "lm_head" not in n]:
        _packed(tensors, name, packed_dim=0)
    config["quantization_config"] = {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 16,
        "desc_act": False,
        "sym": True,
        "dynamic": {
            r"-:model\.layers\.[0-1]\.self_attn\..*": {},
            r"-:model\.layers\.5\..*": {},
            r"+:.*layers\.2\..*down_proj": {"group_size": 8},
            r"+:.*\.up_proj": {"group_size": 16},
        },
        "modules_in_block_to_quantize": [["self_attn.q_proj", "self_attn.k_proj"], ["mlp.down_proj", "experts"]],
    }


def _packed(tensors: Tensors, name: str, packed_dim: int) -> None:
    """Eight 4-bit values in an int32: AWQ packs outputs, GPTQ inputs."""
    outputs, inputs = tensors.pop(name).shape
    groups, path = max(inputs // 16, 1), module(name)
    shape = (inputs, outputs // 8) if packed_dim else (inputs // 8, outputs)
    tensors[f"{path}.qweight"] = torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32)
    tensors[f"{path}.qzeros"] = torch.zeros(groups, outputs // 8, dtype=torch.int32)
    tensors[f"{path}.scales"] = torch.ones(groups, outputs, dtype=torch.float16)
    if not packed_dim:
        tensors[f"{path}.g_idx"] = torch.arange(inputs, dtype=torch.int32) // 16


def mxfp4(config: dict[str, Any], tensors: Tensors) -> None:
    for name in [n for n in tensors if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        tensors[f"{name}_blocks"] = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
        tensors[f"{name}_scales"] = torch.full((experts, outputs, inputs // 32), 127, dtype=torch.uint8)
    config["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
    }


QUANTISED = {
    "deepseek_v3_fp8": ("deepseek_v3", block_fp8),
    "qwen3_compressed": ("qwen3", compressed),
    "nemotron_h_nvfp4": ("nemotron_h", nvfp4_mixed),
    "llama_awq": ("llama", awq),
    "qwen3_moe_gptq": ("qwen3_moe", gptq),
    "gpt_oss_mxfp4": ("gpt_oss", mxfp4),
}
