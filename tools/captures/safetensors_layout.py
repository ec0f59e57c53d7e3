"""Where the columns of a safetensors file lie, checked before a byte of them is believed.

Rows are read with pread at these offsets, so the header is parsed here: size, bounds, no holes, no overlaps.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bitgate.tools.captures.errors import CaptureError
from bitgate.tools.captures.strict_json import StrictJsonError, parse

NUMPY_DTYPE: Final[Mapping[str, str]] = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
ITEM_SIZE: Final[Mapping[str, int]] = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2,
    "U8": 1, "BOOL": 1,
}  # fmt: skip
MAX_HEADER: Final = 4 << 20


@dataclass(frozen=True)
class FileStamp:
    """Which file it was: a later look at the same path must see the same."""

    device: int
    inode: int
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class Stored:
    """One tensor of the file: dtype by its numpy name, shape, first byte counted from the file's start."""

    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Layout:
    path: Path
    stamp: FileStamp
    tensors: Mapping[str, Stored]


def stamp_of(seen: os.stat_result) -> FileStamp:
    return FileStamp(seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns)


def open_regular(path: Path) -> int:
    """A descriptor of a regular file; never blocks on a FIFO or a device.

    Raises:
        CaptureError: capture_missing.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise CaptureError("capture_missing", f"{path}: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CaptureError("capture_missing", f"{path} is not a regular file")
    return descriptor


def read_layout(path: Path) -> Layout:
    """The checked layout of a safetensors file.

    Raises:
        CaptureError: capture_missing, capture_truncated, capture_unreadable.
    """
    descriptor = open_regular(path)
    try:
        stamp = stamp_of(os.fstat(descriptor))
        start, header = _header(path, descriptor, stamp.size)
    finally:
        os.close(descriptor)
    header.pop("__metadata__", None)
    entries = {name: _entry(path, name, entry) for name, entry in header.items()}
    _refuse_holes(path, entries, stamp.size - start)
    tensors = {
        name: Stored(NUMPY_DTYPE[kind], shape, start + begin) for name, (kind, shape, begin, _) in entries.items()
    }
    return Layout(path, stamp, tensors)


def _header(path: Path, descriptor: int, size: int) -> tuple[int, dict[str, Any]]:
    length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
    if size < 8:
        raise CaptureError("capture_truncated", f"{path} has {size} bytes; a safetensors file has at least 8")
    if length > MAX_HEADER:
        raise CaptureError("capture_unreadable", f"{path}: the header claims {length} bytes; allowed: {MAX_HEADER}")
    if size < 8 + length:
        raise CaptureError("capture_truncated", f"{path} has {size} bytes; its header alone has {8 + length}")
    try:
        header = parse(os.pread(descriptor, length, 8))
    except StrictJsonError as error:
        raise CaptureError("capture_unreadable", f"{path}: header is not strict JSON: {error}") from None
    if not isinstance(header, dict):
        raise CaptureError("capture_unreadable", f"{path}: header is not a JSON object")
    return 8 + length, header


Entry = tuple[str, tuple[int, ...], int, int]


def _entry(path: Path, name: str, entry: Any) -> Entry:
    try:
        kind, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        known = kind in NUMPY_DTYPE and all(_natural(number) for number in (*shape, begin, end))
    except (TypeError, KeyError, ValueError):
        known = False
    if not known:
        raise CaptureError("capture_unreadable", f"{path}: tensor {name[:80]!r} has an entry that cannot be read")
    size = ITEM_SIZE[kind]
    for axis in shape:
        size *= axis
    if end - begin != size:
        raise CaptureError(
            "capture_unreadable",
            f"{path}: tensor {name[:80]!r} of {kind} {list(shape)} needs {size} bytes, its offsets hold {end - begin}",
        )
    return kind, shape, begin, end


def _natural(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 1 << 62


def _refuse_holes(path: Path, entries: Mapping[str, Entry], available: int) -> None:
    at = 0
    for name, (_, _, begin, end) in sorted(entries.items(), key=lambda item: item[1][2:]):
        if begin != at:
            raise CaptureError("capture_unreadable", f"{path}: tensor {name[:80]!r} starts at {begin}, not at {at}")
        at = end
    if at > available:
        raise CaptureError("capture_truncated", f"{path}: {available} bytes of data; the header needs {at}")
    if at < available:
        raise CaptureError("capture_unreadable", f"{path}: {available - at} bytes after the last tensor")
