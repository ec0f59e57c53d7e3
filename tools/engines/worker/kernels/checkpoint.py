"""Master weights from and to a checkpoint, under its own names."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..weights import checkpoint_files
from .errors import CheckpointMismatch
from .model import CausalLM

# Buffers that old Llama checkpoints carry and every loader recomputes.
_IGNORED = ("rotary_emb.inv_freq",)
_COPIED = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


def load(model: CausalLM, path: str) -> None:
    """Copies the checkpoint's tensors into the master weights, rounded to their dtype.

    Raises: CheckpointMismatch when names or shapes are not the model's.
    """
    masters = dict(model.named_masters())
    seen: set[str] = set()
    unexpected: list[str] = []
    with torch.no_grad():
        for name, tensor in _tensors(path):
            if name in masters and masters[name].shape == tensor.shape:
                masters[name].copy_(tensor)
                seen.add(name)
            elif not _skipped(model, name):
                unexpected.append(name)
    missing = sorted(set(masters) - seen)
    if missing or unexpected:
        raise CheckpointMismatch(missing, unexpected)


def _tensors(path: str) -> Iterator[tuple[str, Tensor]]:
    for file in checkpoint_files(path):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                yield name, tensors.get_tensor(name)


def _skipped(model: CausalLM, name: str) -> bool:
    return name.endswith(_IGNORED) or (model.tied and name == "lm_head.weight")


def exported(model: CausalLM) -> dict[str, Tensor]:
    """The training-forward weights in the engine's dtype: what a forward computes with and what is exported."""
    return {name: tensor.detach().to(model.dtype) for name, tensor in model.named_masters()}


def save(model: CausalLM, source: str, out: str) -> str:
    """Writes a checkpoint of the model's weights with `source`'s configuration to the new folder `out`.

    Raises: FileExistsError when `out` exists: a weight version is written once.
    """
    return write(exported(model), source, out)


def write(tensors: Mapping[str, Tensor], source: str, out: str) -> str:
    """The same for tensors at hand, all of one dtype, such as those gathered from shards."""
    os.makedirs(out)
    for name in _COPIED:
        if os.path.exists(os.path.join(source, name)):
            shutil.copyfile(os.path.join(source, name), os.path.join(out, name))
    whole = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    save_file(whole, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    _state_dtype(os.path.join(out, "config.json"), next(iter(whole.values())).dtype)
    return out


def _state_dtype(path: str, dtype: torch.dtype) -> None:
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    config["dtype"] = str(dtype).removeprefix("torch.")
    config.pop("torch_dtype", None)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file, indent=2, allow_nan=False)
