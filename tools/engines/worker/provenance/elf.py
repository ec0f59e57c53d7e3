"""The GNU build id of a shared object, from its program headers. Standard library only."""

from __future__ import annotations

import struct
from typing import BinaryIO

_PT_NOTE, _NT_GNU_BUILD_ID = 4, 3
_MOST_NOTES = 1 << 16


def build_id(path: str) -> str | None:
    """Hex digits; None for a file that has none, is not ELF, or is cut short.

    Raises: OSError.
    """
    with open(path, "rb") as file:
        head = file.read(64)
        if len(head) < 64 or head[:4] != b"\x7fELF" or head[5] not in (1, 2) or head[4] not in (1, 2):
            return None
        order = "<" if head[5] == 1 else ">"
        try:
            return next(filter(None, (_in_notes(data, order) for data in _notes(file, head, order))), None)
        except (struct.error, OSError, OverflowError):
            # Offsets of a file that is cut short or made up lead nowhere.
            return None


def _notes(file: BinaryIO, head: bytes, order: str) -> list[bytes]:
    wide = head[4] == 2
    layout, at = (f"{order}Q14xHH", 32) if wide else (f"{order}I10xHH", 28)
    offset, size, count = struct.unpack_from(layout, head, at)
    found = []
    for number in range(min(count, 512)):
        file.seek(offset + number * size)
        entry = file.read(size)
        kind = struct.unpack_from(f"{order}I", entry)[0]
        word, places = ("Q", (8, 32)) if wide else ("I", (4, 16))
        start, length = (struct.unpack_from(f"{order}{word}", entry, place)[0] for place in places)
        if kind == _PT_NOTE:
            file.seek(start)
            found.append(file.read(min(length, _MOST_NOTES)))
    return found


def _in_notes(data: bytes, order: str) -> str | None:
    at = 0
    while at + 12 <= len(data):
        name_size, value_size, kind = struct.unpack_from(f"{order}III", data, at)
        name = data[at + 12 : at + 12 + name_size]
        start = at + 12 + -(-name_size // 4) * 4
        if kind == _NT_GNU_BUILD_ID and name == b"GNU\0":
            return data[start : start + value_size].hex() or None
        at = start + -(-value_size // 4) * 4
    return None
