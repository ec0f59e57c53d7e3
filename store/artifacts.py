"""Content-addressed files beside the ledger: a file's name is the BLAKE3 of its bytes, so no change goes unseen."""

from __future__ import annotations

import contextlib
import fcntl
import mimetypes
import os
import re
import secrets
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

from bitgate.store.canonical import clean_text
from bitgate.store.errors import NotFound, Refused, translated
from bitgate.store.records import ArtifactRef

_CHUNK = 4 << 20
_MAX_NAME = 120
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9.+-]*/[a-z0-9][a-z0-9.+-]*(; ?charset=utf-8)?")


class ArtifactStore:
    """Files by digest under `root`: `ab/abcd…`. Putting the same bytes twice, or at once, is one file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._incoming = root / "incoming"

    def put_bytes(self, data: bytes, name: str, media_type: str | None = None) -> ArtifactRef:
        return self._put(iter((data,)), name, media_type)

    def put_file(self, path: Path, name: str | None = None, media_type: str | None = None) -> ArtifactRef:
        """Copy a file in.

        Raises: NotFound (`file_missing`), Refused (`bad_media_type`), Unavailable (`disk_full`, …).
        """
        if not path.is_file():
            raise NotFound("file_missing", f"{path}: is not a file; only regular files become artifacts")
        with translated(path):
            source = path.open("rb")
        with source:
            return self._put(_chunks(source), name or path.name, media_type)

    def open(self, digest: str) -> BinaryIO:
        path = self.path(digest)
        with translated(path):
            return path.open("rb")

    def path(self, digest: str) -> Path:
        """Where the artifact lies. Raises: Refused (`bad_digest`), NotFound (`artifact_missing`)."""
        path = self._place(digest)
        if not path.is_file():
            raise NotFound("artifact_missing", f"artifact {digest} is not in {self.root}")
        return path

    def require(self, ref: ArtifactRef) -> None:
        """Raises: NotFound, Refused: evidence may name only artifacts that are here, with their true size."""
        size = self.path(ref.digest).stat().st_size
        if size != ref.size:
            raise Refused("artifact_size", f"artifact {ref.name!r}: has {size} bytes in the store, not {ref.size}")

    def problem(self, digest: str) -> str | None:
        """Why the bytes under `digest` are not the ones that were put, or None. Reads them all."""
        if not _DIGEST.fullmatch(digest):
            return "its digest is not one that bitgate makes"
        path = self._place(digest)
        if not path.is_file():
            return "its file is missing"
        with translated(path), path.open("rb") as file:
            found = _digest(file)
        return None if found == digest else f"its file was changed: the bytes hash to {found}"

    def sweep(self) -> int:
        """Remove what killed writers left behind; a living writer holds a lock on its file. Returns how many."""
        try:
            leftovers = list(self._incoming.iterdir())
        except OSError:
            return 0  # nothing was ever put, or this user may only read
        return sum(map(_remove_if_abandoned, leftovers))

    def _place(self, digest: str) -> Path:
        if not _DIGEST.fullmatch(digest):
            raise Refused("bad_digest", f"digest: got {digest[:80]!r}; allowed are 64 lowercase hex digits")
        return self.root / digest[:2] / digest

    def _put(self, chunks: Iterator[bytes], name: str, media_type: str | None) -> ArtifactRef:
        shown, kind = clean_name(name), _media_type(name, media_type)
        with translated(self.root):
            self._incoming.mkdir(parents=True, exist_ok=True)
            with _incoming_file(self._incoming) as (temporary, file):
                digest, size = _copy(chunks, file)
                self._keep(temporary, digest)
        return ArtifactRef(name=shown, digest=digest, size=size, media_type=kind)

    def _keep(self, temporary: Path, digest: str) -> None:
        place = self._place(digest)
        made = not place.parent.exists()
        place.parent.mkdir(exist_ok=True)
        # Replaces a file of the same digest: the same bytes, unless somebody swapped them, and then this heals it.
        temporary.replace(place)
        _sync_folder(place.parent)
        if made:
            _sync_folder(self.root)


def clean_name(name: str) -> str:
    """A file name that is safe to show, to save and to put in a header: no folders, no control or direction marks."""
    last = re.split(r"[/\\]", clean_text(name))[-1]
    kept = "".join(c for c in last if unicodedata.category(c) not in ("Cc", "Cf", "Zl", "Zp")).strip().lstrip(".")
    return kept[:_MAX_NAME] or "artifact"


def _media_type(name: str, given: str | None) -> str:
    kind = given or mimetypes.guess_type(name)[0] or "application/octet-stream"
    if not _MEDIA_TYPE.fullmatch(kind):
        raise Refused("bad_media_type", f"media_type: got {kind[:60]!r}; allowed is the form type/subtype")
    return kind


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk


def _digest(file: BinaryIO) -> str:
    hasher = blake3()
    for chunk in _chunks(file):
        hasher.update(chunk)
    return hasher.hexdigest()


def _copy(chunks: Iterator[bytes], file: BinaryIO) -> tuple[str, int]:
    hasher, size = blake3(), 0
    for chunk in chunks:
        hasher.update(chunk)
        file.write(chunk)
        size += len(chunk)
    file.flush()
    os.fchmod(file.fileno(), 0o444)
    os.fsync(file.fileno())
    return hasher.hexdigest(), size


@contextlib.contextmanager
def _incoming_file(folder: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A new locked file. When what is inside fails, the file goes; a lock ends with its process, however that ends."""
    while True:
        path = folder / f"{os.getpid()}-{secrets.token_hex(8)}"
        with path.open("xb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_nlink == 0:
                continue  # swept between making and locking it
            try:
                yield path, file
            finally:
                path.unlink(missing_ok=True)
            return


def _remove_if_abandoned(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
            return True
    except OSError:
        return False  # its writer lives, or another sweep was faster


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
