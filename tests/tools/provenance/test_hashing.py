from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from blake3 import blake3

from bitgate.tools.provenance import hashing
from bitgate.tools.provenance.hashing import HashCache


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(40):
        (folder / f"f{number}").write_bytes(bytes([number]) * (number * 1000))
    return [str(path) for path in sorted(folder.iterdir())]


@pytest.mark.parametrize("helpers_from", [10, 10_000])
def test_digests_are_those_of_the_bytes_with_and_without_helpers(
    files: list[str], tmp_path: Path, helpers_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "HELPER_FROM", helpers_from)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    found = HashCache(tmp_path / "h.db").blake3(files)
    assert found.digests == {path: blake3(Path(path).read_bytes()).hexdigest() for path in files}
    assert found.read == len(files)


def test_only_what_changed_is_read_again(files: list[str], tmp_path: Path) -> None:
    cache = HashCache(tmp_path / "h.db")
    cache.blake3(files)
    Path(files[3]).write_bytes(b"other")
    again = cache.blake3(files)
    assert (again.read, again.digests[files[3]]) == (1, blake3(b"other").hexdigest())


def test_a_file_put_back_with_its_old_size_and_time_is_read_again(files: list[str], tmp_path: Path) -> None:
    cache, path = HashCache(tmp_path / "h.db"), Path(files[5])
    before = path.stat()
    cache.blake3(files)
    path.write_bytes(b"\xff" * before.st_size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert cache.blake3(files).digests[files[5]] == blake3(path.read_bytes()).hexdigest()


def test_both_kinds_are_kept_apart(files: list[str], tmp_path: Path) -> None:
    cache = HashCache(tmp_path / "h.db")
    cache.blake3(files)
    assert cache.sha256(files[:2]).digests[files[1]] == hashlib.sha256(Path(files[1]).read_bytes()).hexdigest()
    assert cache.blake3(files[:2]).read == 0


def test_missing_files_are_named_and_a_broken_cache_costs_only_time(files: list[str], tmp_path: Path) -> None:
    (tmp_path / "h.db").write_bytes(b"no database at all" * 100)
    found = HashCache(tmp_path / "h.db").blake3([*files, "/nowhere/at/all", "bad\0name"])
    assert len(found.digests) == len(files)
    assert found.unreadable["/nowhere/at/all"] == "No such file or directory"
    assert "bad\0name" in found.unreadable


def test_a_folder_is_unreadable_and_no_digest(tmp_path: Path) -> None:
    found = HashCache(tmp_path / "h.db").blake3([str(tmp_path)])
    assert (found.digests, found.unreadable) == ({}, {str(tmp_path): "Is a directory"})
