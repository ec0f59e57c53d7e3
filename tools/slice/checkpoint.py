"""A transformers checkpoint folder, opened without reading its weights: config, tensors, and the files beside them."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from bitgate.tools.slice.header import TensorEntry, is_text, read_header
from bitgate.tools.slice.refusal import (
    CONFIG_BROKEN,
    FORMAT,
    PATH_ESCAPES,
    SHARD_MISSING,
    TENSOR_MISSING,
    Refusal,
)

Json = dict[str, Any]

INDEX: Final = "model.safetensors.index.json"
SLICE_FILE: Final = "bitgate_slice.json"
SINGLE: Final = "model.safetensors"
OTHER_FORMATS: Final = (".bin", ".pt", ".pth", ".ckpt", ".gguf", ".msgpack", ".h5", ".npz", ".onnx")
SIDE_SUFFIXES: Final = (".json", ".model", ".txt", ".py", ".jinja", ".tiktoken", ".spm", ".vocab", ".bpe", ".md")
SIDE_NAMES: Final = ("LICENSE", "NOTICE", "LICENSE.txt", "USE_POLICY")
MAX_JSON: Final = 200_000_000
MAX_DEPTH: Final = 64
MARK: Final = "\x00bare {}"
"""Stands for a bare JSON constant while the document is in memory."""


@dataclass(frozen=True)
class Checkpoint:
    """`tensors` in the order of their bytes; `side_files` are relative paths of what travels with the weights."""

    root: Path
    config: Json
    hf_quant_config: Json | None
    tensors: dict[str, TensorEntry]
    index_metadata: Json
    side_files: tuple[str, ...]
    unindexed: tuple[str, ...]

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.tensors.values())


def open_checkpoint(root: Path) -> Checkpoint:
    """Read the headers of every shard, and nothing else of them.

    Raises:
        Refusal: not a readable safetensors checkpoint; the code says which of the listed reasons.
    """
    root = root.resolve()
    if not root.is_dir():
        raise Refusal(FORMAT, f"{root} is not a folder")
    files = sorted(path.name for path in root.iterdir())
    config = _config(root)
    wanted, metadata = _weight_map(root, files)
    shards = sorted(set(wanted.values())) if wanted is not None else _lone_shards(files)
    tensors, extra = _tensors(root, shards, wanted)
    quant = read_json(confined(root, "hf_quant_config.json")) if "hf_quant_config.json" in files else None
    return Checkpoint(root, config, quant, tensors, metadata, _side_files(root), extra)


def read_json(path: Path) -> Json:
    """A JSON object from a file of the checkpoint.

    Older configurations hold bare `Infinity` (mamba's time_step_limit): it becomes a marked string that `write_json`
    turns back, so that no float of ours is ever infinite.
    """
    try:
        if path.stat().st_size > MAX_JSON:
            raise Refusal(CONFIG_BROKEN, f"{path.name} is larger than {MAX_JSON} bytes")
        document = json.loads(path.read_text(encoding="utf-8"), parse_constant=MARK.format)
    except (ValueError, RecursionError, OSError) as error:
        raise Refusal(CONFIG_BROKEN, f"{path.name} is not readable JSON ({type(error).__name__})") from error
    if not isinstance(document, dict):
        raise Refusal(CONFIG_BROKEN, f"{path.name} is not a JSON object")
    _check_document(document, path.name)
    return document


def _check_document(value: Any, name: str, depth: int = 0) -> None:
    """Refuse what could be read but not written again."""
    if depth > MAX_DEPTH:
        raise Refusal(CONFIG_BROKEN, f"{name} is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, str) and not is_text(value):
        raise Refusal(CONFIG_BROKEN, f"{name} holds {value[:80]!r}, which is not Unicode text")
    if isinstance(value, dict | list):
        for item in (*value, *value.values()) if isinstance(value, dict) else value:
            _check_document(item, name, depth + 1)


def write_json(document: Json) -> str:
    """The document as text, sorted as it came, with the bare constants that it had."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    return re.sub(r'"\\u0000bare (-?Infinity|NaN)"', r"\1", text) + "\n"


def confined(root: Path, name: str) -> Path:
    """The file `name` of the checkpoint, links followed; the hub cache's snapshots/REV -> blobs links are its own.

    Raises:
        Refusal: it lies outside the folder.
    """
    pure = PurePosixPath(name)
    if not name or pure.is_absolute() or ".." in pure.parts or "\0" in name or "\\" in name:
        raise Refusal(PATH_ESCAPES, f"{name[:200]!r} is not a path inside the checkpoint folder")
    real = Path(os.path.realpath(root / name))
    if real.is_relative_to(root) or (root.parent.name == "snapshots" and real.parent == root.parent.parent / "blobs"):
        return real
    raise Refusal(PATH_ESCAPES, f"{name[:200]!r} leads outside the checkpoint folder")


def _config(root: Path) -> Json:
    path = confined(root, "config.json")
    if not path.is_file():
        raise Refusal(FORMAT, f"{root} has no config.json, so it is not a transformers checkpoint")
    return read_json(path)


def _weight_map(root: Path, files: list[str]) -> tuple[dict[str, str] | None, Json]:
    if INDEX not in files:
        return None, {}
    document = read_json(confined(root, INDEX))
    mapping = document.get("weight_map")
    if not isinstance(mapping, dict) or not all(isinstance(item, str) for item in mapping.values()):
        raise Refusal(CONFIG_BROKEN, f"{INDEX} has no weight_map of tensor names to file names")
    metadata = document.get("metadata")
    return mapping, metadata if isinstance(metadata, dict) else {}


def _lone_shards(files: list[str]) -> list[str]:
    if SINGLE in files:
        return [SINGLE]
    shards = [name for name in files if name.endswith(".safetensors")]
    if len(shards) == 1:
        return shards
    if shards:
        raise Refusal(
            SHARD_MISSING, f"{len(shards)} safetensors files without {INDEX}: which belong together is unknown"
        )
    other = [name for name in files if name.endswith(OTHER_FORMATS)]
    found = f"only {', '.join(other[:5])}" if other else "no weights"
    raise Refusal(FORMAT, f"the folder has {found}; only safetensors is cut")


def _tensors(
    root: Path, shards: list[str], wanted: dict[str, str] | None
) -> tuple[dict[str, TensorEntry], tuple[str, ...]]:
    found: dict[str, TensorEntry] = {}
    extra: list[str] = []
    for shard in shards:
        path = confined(root, shard)
        if not shard.endswith(".safetensors"):
            raise Refusal(FORMAT, f"the index names {shard[:200]!r}; only safetensors is cut")
        if not path.is_file():
            raise Refusal(
                SHARD_MISSING, f"{shard} is not there ({_count(wanted, shard)} tensors of the index are in it)"
            )
        for entry in read_header(path):
            mine = wanted is None or wanted.get(entry.name) == shard
            (found.__setitem__(entry.name, entry) if mine else extra.append(entry.name))
    lost = sorted(set(wanted or ()) - set(found))
    if lost:
        raise Refusal(TENSOR_MISSING, f"{len(lost)} tensors of the index are in no file, first {lost[0][:200]!r}")
    if not found:
        raise Refusal(FORMAT, "the checkpoint holds no tensor")
    return found, tuple(extra)


def _count(wanted: dict[str, str] | None, shard: str) -> int:
    return sum(1 for file in (wanted or {}).values() if file == shard)


def _side_files(root: Path) -> tuple[str, ...]:
    """Tokenizer, generation config, chat template, remote code, licence, one folder deep; never weights or config."""
    rewritten = {INDEX, SLICE_FILE, "config.json", "hf_quant_config.json"}
    found: list[str] = []
    for path in sorted(root.iterdir()):
        if path.is_dir() and not path.is_symlink() and not path.name.startswith("."):
            found += [f"{path.name}/{inner.name}" for inner in sorted(path.iterdir()) if _is_side(inner)]
        elif path.name not in rewritten and _is_side(path):
            found.append(path.name)
    return tuple(name for name in found if confined(root, name).is_file())


def _is_side(path: Path) -> bool:
    named = path.name in SIDE_NAMES or path.suffix in SIDE_SUFFIXES
    return named and not path.name.endswith(".index.json") and path.is_file()
