"""The cut as a transaction: a folder under a temporary name, synced, then renamed; or nothing at all."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

from bitgate.tools.errors import RequestError
from bitgate.tools.slice.checkpoint import INDEX, SLICE_FILE, Checkpoint, Json, confined, write_json
from bitgate.tools.slice.copying import Mover
from bitgate.tools.slice.header import encode_header
from bitgate.tools.slice.layout import Layout, Piece
from bitgate.tools.slice.refusal import NO_ROOM, Refusal

PARTIAL: Final = ".bitgate-partial-"
MARGIN: Final = 64 << 20

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all; raises to cancel."""


@dataclass(frozen=True)
class CopiedTensor:
    """`whole` is false for a tensor of which only the kept layers' blocks were copied."""

    name: str
    source_name: str
    file: str
    size: int
    whole: bool
    source_digest: str
    copy_digest: str


@dataclass(frozen=True)
class CutResult:
    path: Path
    tensors: tuple[CopiedTensor, ...]
    size: int
    files: tuple[str, ...]
    in_kernel: bool

    @property
    def different(self) -> tuple[CopiedTensor, ...]:
        return tuple(item for item in self.tensors if item.source_digest != item.copy_digest)


def check_target(source: Path, out: Path) -> None:
    """Raises RequestError when `out` cannot be the slice's folder."""
    where = out.parent.resolve() / out.name
    if where.is_relative_to(source.resolve()):
        raise RequestError("name", str(out), "a folder outside the checkpoint", "The checkpoint is never written to.")
    if os.path.lexists(where):
        raise RequestError(
            "name", str(out), "a name that is not taken", "Choose another name, or remove the old slice."
        )


def cut(checkpoint: Checkpoint, layout: Layout, out: Path, provenance: Json, progress: Progress) -> CutResult:
    """Write the slice to `out`.

    Raises:
        RequestError: `out` exists or lies in the checkpoint.
        Refusal: no room on disk; nothing is left.
    """
    check_target(checkpoint.root, out)
    out.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(out.parent)
    _check_room(checkpoint, layout, out.parent)
    with _partial(out) as folder, _no_space_is_refusal(layout):
        result = _fill(checkpoint, layout, folder, provenance, progress)
        _put_in_place(folder, out)
    return CutResult(out, result.tensors, result.size, result.files, result.in_kernel)


def _put_in_place(folder: Path, out: Path) -> None:
    taken = RequestError("name", str(out), "a name that is not taken", "It appeared while the slice was written.")
    if os.path.lexists(out):
        raise taken
    try:
        os.rename(folder, out)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise taken from error
        raise
    _sync(out.parent)


def remove_abandoned(parent: Path) -> None:
    """Delete temporary folders whose writer was killed: a living one holds a lock."""
    for folder in parent.glob(f"{PARTIAL}*"):
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            # Not a folder, or another cut has just finished or removed it.
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            continue
        finally:
            os.close(handle)


def _locked_folder(out: Path) -> tuple[Path, int]:
    """A new temporary folder and its lock. Another cut may remove it before it is locked: then there is a next one."""
    while True:
        folder = out.parent / f"{PARTIAL}{out.name}-{os.getpid()}-{os.urandom(4).hex()}"
        folder.mkdir()
        with suppress(FileNotFoundError):
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(handle, fcntl.LOCK_EX)
            if folder.exists():
                return folder, handle
            os.close(handle)


@contextmanager
def _partial(out: Path) -> Iterator[Path]:
    folder, handle = _locked_folder(out)
    try:
        yield folder
    finally:
        if folder.exists():
            shutil.rmtree(folder)
        os.close(handle)


def _check_room(checkpoint: Checkpoint, layout: Layout, parent: Path) -> None:
    side = sum(confined(checkpoint.root, name).stat().st_size for name in checkpoint.side_files)
    wanted, disk = layout.size + side + MARGIN, os.statvfs(parent)
    free = disk.f_bavail * disk.f_frsize
    if free < wanted:
        raise Refusal(NO_ROOM, f"the slice needs {wanted} bytes in {parent}, which has {free} free")


@contextmanager
def _no_space_is_refusal(layout: Layout) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise Refusal(NO_ROOM, f"the disk filled up while {layout.size} bytes were written") from error


def _fill(checkpoint: Checkpoint, layout: Layout, folder: Path, provenance: Json, progress: Progress) -> CutResult:
    done = 0

    def tick(moved: int) -> None:
        nonlocal done
        done += moved
        progress(done, layout.size)

    mover = Mover(tick)
    tensors: list[CopiedTensor] = []
    for number, pieces in enumerate(layout.shards):
        tensors += _write_shard(mover, pieces, folder / layout.shard_name(number))
    files = _write_documents(checkpoint, layout, folder, provenance)
    _sync(folder)
    return CutResult(folder, tuple(tensors), layout.size, files, mover.in_kernel)


def _write_shard(mover: Mover, pieces: tuple[Piece, ...], path: Path) -> list[CopiedTensor]:
    """Copy, sync, then read the copy again: the second digest is of what the file now holds."""
    header = encode_header([(p.name, p.source.dtype, p.shape, p.size) for p in pieces], {"format": "pt"})
    with ExitStack() as stack:
        target = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        stack.callback(os.close, target)
        os.pwrite(target, header, 0)
        sources = _Sources(stack)
        digests, offsets, at = [], [], len(header)
        for piece in pieces:
            digests.append(mover.move(piece, sources.handle(piece.source.file), target, at))
            offsets.append(at)
            at += piece.size
        os.fsync(target)
        copies = [mover.digest(target, offset, piece.size) for offset, piece in zip(offsets, pieces, strict=True)]
    return [
        CopiedTensor(p.name, p.source.name, path.name, p.size, p.whole, source, copy)
        for p, source, copy in zip(pieces, digests, copies, strict=True)
    ]


class _Sources:
    """Open source files of a shard, each once."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack, self.handles = stack, dict[Path, int]()

    def handle(self, path: Path) -> int:
        if path not in self.handles:
            self.handles[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self.stack.callback(os.close, self.handles[path])
        return self.handles[path]


def _write_documents(checkpoint: Checkpoint, layout: Layout, folder: Path, provenance: Json) -> tuple[str, ...]:
    texts = {"config.json": write_json(layout.config), SLICE_FILE: write_json(provenance)}
    if layout.hf_quant_config is not None:
        texts["hf_quant_config.json"] = write_json(layout.hf_quant_config)
    if len(layout.shards) > 1:
        texts[INDEX] = write_json(index_of(layout, checkpoint.index_metadata))
    for name in checkpoint.side_files:
        target = folder / name
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(confined(checkpoint.root, name), target)
        _sync(target)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
        _sync(folder / name)
    return (*sorted(texts), *checkpoint.side_files)


def index_of(layout: Layout, source_metadata: Json) -> Json:
    """The index: sizes are those of the slice; other metadata of the source describes the source and is dropped."""
    weight_map = {p.name: layout.shard_name(number) for number, shard in enumerate(layout.shards) for p in shard}
    metadata: Json = {"total_size": layout.size}
    if "total_parameters" in source_metadata:
        metadata["total_parameters"] = sum(prod(piece.shape) for piece in layout.pieces)
    return {"metadata": metadata, "weight_map": dict(sorted(weight_map.items()))}


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
