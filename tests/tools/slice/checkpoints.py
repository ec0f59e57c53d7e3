"""Hand-written checkpoints without torch: safetensors bytes, broken in the ways that files can be."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 6,
    "hidden_size": 4,
    "vocab_size": 8,
}
LAYER = ("input_layernorm", "self_attn.q_proj", "mlp.down_proj")


def names(layers: int = 6) -> list[str]:
    inner = [f"model.layers.{i}.{module}.weight" for i in range(layers) for module in LAYER]
    return ["model.embed_tokens.weight", *inner, "model.norm.weight", "lm_head.weight"]


def encode(tensors: Mapping[str, bytes], dtype: str = "U8") -> bytes:
    """A file of one-dimensional byte tensors."""
    document, position = {}, 0
    for name, data in tensors.items():
        document[name] = {"dtype": dtype, "shape": [len(data)], "data_offsets": [position, position + len(data)]}
        position += len(data)
    return with_header(json.dumps(document).encode(), b"".join(tensors.values()))


def with_header(header: bytes, data: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def write(root: Path, tensors: Mapping[str, bytes] | None = None, shards: int = 2, **config: Any) -> Path:
    """A small llama of random bytes in `shards` files."""
    root.mkdir(parents=True)
    tensors = {name: os.urandom(64) for name in names()} if tensors is None else tensors
    listed, weight_map = list(tensors), {}
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in listed[number::shards]}
        (root / file).write_bytes(encode(part))
        weight_map.update(dict.fromkeys(part, file))
    index = {"metadata": {"total_size": 1, "stale": True}, "weight_map": weight_map}
    (root / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    (root / "config.json").write_text(json.dumps({**CONFIG, **config}), encoding="utf-8")
    (root / "tokenizer.json").write_text("{}", encoding="utf-8")
    (root / "modeling_mine.py").write_text("# remote code\n", encoding="utf-8")
    (root / "pytorch_model.bin").write_bytes(b"not taken along")
    return root
