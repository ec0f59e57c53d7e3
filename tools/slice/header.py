"""The header of a safetensors file: where each tensor's bytes lie. Fail-closed, as the file may come from anywhere.

Format: 8 bytes little-endian length N, N bytes of JSON, then the data; `data_offsets` count from the data's start
(https://github.com/huggingface/safetensors, README "Format").
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

from bitgate.tools.slice.refusal import SHARD_BROKEN, Refusal

MAX_HEADER: Final = 100_000_000
"""The limit of the reference implementation."""

MAX_DIMENSIONS: Final = 64
"""The limit of torch."""

DTYPE_BITS: Final[dict[str, int]] = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


@dataclass(frozen=True)
class TensorEntry:
    """One tensor in one file; `offset` is absolute in the file, in bytes."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


def read_header(path: Path) -> list[TensorEntry]:
    """The tensors of `path` in the order of their bytes, which together cover the data exactly.

    Raises:
        Refusal: the header is not of the format, or the offsets overlap, leave holes or pass the end of the file.
    """
    length, raw = _raw_header(path)
    document = _parsed(path, raw)
    metadata = document.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise _broken(path, f"__metadata__ is {type(metadata).__name__}, not an object")
    start = 8 + length
    entries = sorted((_entry(path, name, value, start) for name, value in document.items()), key=_place)
    _check_cover(path, entries, start)
    return entries


def _raw_header(path: Path) -> tuple[int, bytes]:
    total = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            raise _broken(path, f"{total} bytes is too short for a header")
        length = int.from_bytes(prefix, "little")
        if length > MAX_HEADER or 8 + length > total:
            raise _broken(path, f"the header claims {length} bytes; the file has {total}, the limit is {MAX_HEADER}")
        return length, file.read(length)


def _parsed(path: Path, raw: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise _broken(path, f"the header has the key {name[:200]!r} twice")
            found[name] = value
        return found

    try:
        document = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise _broken(path, f"the header is not JSON ({type(error).__name__})") from error
    if not isinstance(document, dict):
        raise _broken(path, "the header is not a JSON object")
    return document


def _entry(path: Path, name: str, value: Any, start: int) -> TensorEntry:
    shown = name[:200]
    if not is_text(name):
        raise _broken(path, f"tensor {shown!r} has a name that is not Unicode text")
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise _broken(path, f"tensor {shown!r} needs exactly dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise _broken(path, f"tensor {shown!r} has the unknown dtype {str(dtype)[:40]!r}")
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _broken(path, f"tensor {shown!r} has a shape or offsets that are not natural numbers in order")
    if len(shape) > MAX_DIMENSIONS:
        raise _broken(path, f"tensor {shown!r} has {len(shape)} dimensions, the limit is {MAX_DIMENSIONS}")
    bits = DTYPE_BITS[dtype] * prod(shape)
    size = offsets[1] - offsets[0]
    if bits != 8 * size:
        raise _broken(path, f"tensor {shown!r} is {bits} bits by dtype and shape, {8 * size} by its offsets")
    return TensorEntry(name, path, dtype, tuple(shape), start + offsets[0], size)


def is_text(value: str) -> bool:
    """Whether it can be written at all: JSON escapes can spell half of a surrogate pair."""
    return not any("\ud800" <= letter <= "\udfff" for letter in value) if not value.isascii() else True


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 63 for item in value)


def _place(entry: TensorEntry) -> tuple[int, int, str]:
    return entry.offset, entry.size, entry.name


def _check_cover(path: Path, entries: list[TensorEntry], start: int) -> None:
    position = start
    for entry in entries:
        if entry.offset != position:
            what = "overlaps the one before" if entry.offset < position else "leaves a hole before it"
            raise _broken(path, f"tensor {entry.name[:200]!r} {what}")
        position += entry.size
    total = path.stat().st_size
    if position != total:
        what = "truncated" if position > total else "longer than its header says"
        raise _broken(path, f"the file is {what}: {total} bytes, the header ends at {position}")


def _broken(path: Path, what: str) -> Refusal:
    return Refusal(SHARD_BROKEN, f"{path.name}: {what}")


def encode_header(entries: list[tuple[str, str, tuple[int, ...], int]], metadata: dict[str, str]) -> bytes:
    """The length, JSON and padding for tensors (name, dtype, shape, size) that follow each other without holes."""
    document: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    position = 0
    for name, dtype, shape, size in entries:
        document[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    raw = json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode("utf-8")
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw
