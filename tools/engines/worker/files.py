"""Files that are either whole or not there."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def write_json(path: str | os.PathLike[str], body: object, *, durable: bool = True) -> None:
    """Written beside `path`, flushed to the disk, renamed: a reader sees the old file or the new one."""
    text = json.dumps(body, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    temporary = f"{os.fspath(path)}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        sync_folder(os.path.dirname(os.path.abspath(path)))


def sync_folder(path: str | os.PathLike[str]) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class Reserve:
    """Disk space held back, so that the last words can be written when the disk is full."""

    def __init__(self, path: str | os.PathLike[str], size: int) -> None:
        self.path = path
        with suppress(OSError), open(path, "wb") as file:
            file.write(b"\0" * size)

    def release(self) -> None:
        with suppress(OSError):
            os.unlink(self.path)


def is_disk_full(error: BaseException | None) -> bool:
    """True when `error`, or what caused it, is the system saying that no byte more fits."""
    seen = 0
    while error is not None and seen < 20:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            return True
        # safetensors and SQLite wrap the number into a text.
        if any(os.strerror(number).lower() in str(error).lower() for number in DISK_FULL):
            return True
        error, seen = error.__cause__ or error.__context__, seen + 1
    return False
