"""Canonical digest of weights under the checkpoint's own (unfused) names, and of a checkpoint's files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from safetensors import safe_open

from .capture import tensor_digest
from .checkpoint import CheckpointError, check_file, file_digests

INDEX = "model.safetensors.index.json"
# What a configuration says about how its files were written or used, not about the architecture.
NOT_ARCHITECTURE = frozenset({"_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache", "auto_map"})


@dataclass
class Digest:
    """Collects `name -> digest`; a tensor that cannot be read back is named with the reason, never left out."""

    by_name: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    size: int = 0

    def add(self, name: str, value: Any) -> None:
        """`value`: a torch tensor or numpy array, or a text that says why the resident bytes cannot be read."""
        if isinstance(value, str):
            self.unreadable[name] = value
            return
        self.by_name[name] = tensor_digest(name, value)
        self.size += value.nbytes

    def root(self) -> str:
        """SHA-256 over the sorted `name:digest` lines; unreadable tensors make a line no complete digest has."""
        lines = [f"{name}:{digest}" for name, digest in self.by_name.items()]
        lines += [f"{name}:unreadable" for name in self.unreadable]
        return hashlib.sha256("\n".join(sorted(lines)).encode("utf-8")).hexdigest()

    def record(self) -> dict[str, Any]:
        """The `weights` entry of result.json."""
        return {
            "digest": self.root(),
            "tensors": len(self.by_name),
            "bytes": self.size,
            "by_name": self.by_name,
            "unreadable": self.unreadable,
        }


def digest_of(weights: Iterable[tuple[str, Any]]) -> Digest:
    digest = Digest()
    for name, value in weights:
        digest.add(name, value)
    return digest


def checkpoint_digest(path: str | os.PathLike[str]) -> Digest:
    """The same digest of a checkpoint directory's safetensors files, from their bytes; needs no torch.

    Raises:
        CheckpointError: there is none, one is truncated or not of the format, or a name appears twice.
    """
    files = checkpoint_files(path)
    if not files:
        raise CheckpointError(f"{os.fspath(path)}: no safetensors file there; name a checkpoint directory")
    digest = Digest()
    for file in files:
        for name, value, size in file_digests(file):
            if name in digest.by_name:
                raise CheckpointError(f"{file}: the tensor {name!r} is in another file of the checkpoint too")
            digest.by_name[name] = value
            digest.size += size
    return digest


def check_checkpoint(path: str | os.PathLike[str]) -> None:
    """Reads the headers of a checkpoint's safetensors files, so that a damaged one is named before an engine loads it.

    Raises:
        CheckpointError: a file that the index names is missing, or one is truncated or not of the format.
    """
    try:
        files = checkpoint_files(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{os.path.join(path, INDEX)}: cannot be read: {type(error).__name__}: {error}"
        ) from error
    for file in files:
        check_file(file)


def vocabulary_of(path: str | os.PathLike[str]) -> int | None:
    """The number of token ids that config.json states; None where it states none."""
    try:
        with open(os.path.join(path, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        sizes = [config.get("vocab_size"), (config.get("text_config") or {}).get("vocab_size")]
    except (OSError, ValueError, AttributeError):
        return None
    return max((size for size in sizes if isinstance(size, int)), default=None)


def checkpoint_files(path: str | os.PathLike[str]) -> list[str]:
    """The files that hold the weights: those of the index, or every safetensors file."""
    folder, index = os.fspath(path), os.path.join(path, INDEX)
    if os.path.exists(index):
        with open(index, encoding="utf-8") as file:
            names = sorted(set(json.load(file)["weight_map"].values()))
    else:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".safetensors"))
    return [os.path.join(folder, name) for name in names]


class CheckpointReader:
    """Single tensors of a checkpoint by name, to prove a transform of resident weights against."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file_of: dict[str, str] = {}
        for file in checkpoint_files(path):
            with safe_open(file, framework="pt") as tensors:
                self._file_of |= dict.fromkeys(tensors.keys(), file)

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def tensor(self, name: str) -> Any:
        with safe_open(self._file_of[name], framework="pt") as tensors:
            return tensors.get_tensor(name)


def architecture_digest(path: str | os.PathLike[str]) -> str:
    """SHA-256 of config.json without the keys that say nothing about the architecture."""
    with open(os.path.join(path, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    kept = {key: value for key, value in config.items() if key not in NOT_ARCHITECTURE}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
