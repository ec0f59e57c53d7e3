"""The bytes of a checkpoint's tensors, read without torch: bf16 and fp8 stay what they are."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from operator import index
from typing import Any

MAX_HEADER = 100_000_000
TORCH_NAMES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "I32": "int32", "U32": "uint32",
    "I64": "int64", "U64": "uint64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu", "C64": "complex64",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz", "F4": "float4_e2m1fn_x2",
}  # fmt: skip
"""safetensors dtype -> the name that torch and numpy use, which is the one that is hashed."""


class CheckpointError(ValueError):
    """A checkpoint's files cannot be digested; the text names the file and what is wrong with it."""


def file_digests(path: str | os.PathLike[str]) -> Iterator[tuple[str, str, int]]:
    """(name, digest as `capture.tensor_digest` has it, bytes) of every tensor in one safetensors file.

    Raises:
        CheckpointError: the file is truncated or not of the format.
    """
    with _opened(path) as data:
        start = 8 + int.from_bytes(data[:8], "little")
        for name, entry in _header(path, data, start).items():
            yield _digest_entry(path, data, start, name, entry)


def check_file(path: str | os.PathLike[str]) -> None:
    """Reads the header of one safetensors file and nothing of its tensors.

    Raises:
        CheckpointError: the file is missing, truncated or not of the format.
    """
    with _opened(path) as data:
        start = 8 + int.from_bytes(data[:8], "little")
        for name, entry in _header(path, data, start).items():
            _bounds(path, data, start, name, entry)


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[mmap.mmap]:
    try:
        size = os.path.getsize(path)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    if size < 8:
        raise CheckpointError(f"{path}: {size} bytes are too few for a safetensors file")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield data


def _header(path: str | os.PathLike[str], data: mmap.mmap, start: int) -> dict[str, Any]:
    if start > min(len(data), MAX_HEADER):
        raise CheckpointError(f"{path}: its header claims {start - 8} bytes of a file of {len(data)}; is it truncated?")
    try:
        header = json.loads(data[8:start])
        header.pop("__metadata__", None)
    except (ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: its header is not a JSON object: {error}") from error
    found: dict[str, Any] = header
    return found


def _bounds(
    path: str | os.PathLike[str], data: mmap.mmap, start: int, name: str, entry: Any
) -> tuple[str, list[int], int, int]:
    try:
        dtype, shape, (first, end) = TORCH_NAMES[entry["dtype"]], entry["shape"], map(index, entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: tensor {name!r} has no usable dtype, shape and offsets ({error})") from error
    if not 0 <= first <= end or start + end > len(data):
        raise CheckpointError(
            f"{path}: tensor {name!r} ends at byte {start + end} of {len(data)}; the file is truncated"
        )
    return dtype, shape, first, end


def _digest_entry(
    path: str | os.PathLike[str], data: mmap.mmap, start: int, name: str, entry: Any
) -> tuple[str, str, int]:
    dtype, shape, first, end = _bounds(path, data, start, name, entry)
    digest = hashlib.sha256(f"{name}|{dtype}|{','.join(map(str, shape))}|".encode())
    view = memoryview(data)
    try:
        digest.update(view[start + first : start + end])
    finally:
        view.release()
    return name, digest.hexdigest(), end - first
