"""A Qwen3 with int8 weights, a scale a channel; activations are quantised a token at a time (compressed-tensors)."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from bitgate.tools.engines.worker.tiny_model import TinyModel, write_tiny_model

BITS = {"num_bits": 8, "type": "int", "symmetric": True}
GROUP = {
    "targets": ["Linear"],
    "weights": {**BITS, "strategy": "channel", "dynamic": False},
    "input_activations": {**BITS, "strategy": "token", "dynamic": True},
}
QUANTISATION = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "config_groups": {"group_0": GROUP},
    "ignore": ["lm_head"],
}


def write_int8(out: Path, model: TinyModel) -> Path:
    write_tiny_model(out, model)
    tensors = load_file(out / "model.safetensors")
    made: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if not name.endswith("_proj.weight"):
            made[name] = tensor
            continue
        scale = tensor.float().abs().amax(1, keepdim=True) / 127
        made[name] = (tensor.float() / scale).round().to(torch.int8)
        made[f"{name}_scale"] = scale.to(tensor.dtype)
    save_file(made, out / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = QUANTISATION
    (out / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return out
