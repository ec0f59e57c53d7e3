from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from bitgate.tools.provenance import digesting, hashing
from bitgate.tools.provenance.digesting import CHANGED, digests, fill, taken
from bitgate.tools.provenance.hashing import HashCache, hash_all


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """These files were all written a moment ago."""
    monkeypatch.setattr(hashing, "SETTLED_NS", 0)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(40):
        (folder / f"f{number}").write_bytes(bytes([number]) * (number * 1000))
    return [str(path) for path in sorted(folder.iterdir())]


WAYS = pytest.mark.parametrize("helpers_from", [10, 10_000], ids=["helpers", "threads"])
MADE: dict[str, Callable[[bytes], Any]] = {"blake3": blake3, "sha256": hashlib.sha256}


@WAYS
@pytest.mark.parametrize("kind", MADE)
def test_digests_are_those_of_the_bytes(
    files: list[str], tmp_path: Path, kind: str, helpers_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "HELPER_FROM", helpers_from)
    monkeypatch.setattr(hashing, "_cores", lambda: 3)
    found = getattr(HashCache(tmp_path / "h.db"), kind)(files)
    assert found.digests == {path: MADE[kind](Path(path).read_bytes()).hexdigest() for path in files}
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


@WAYS
def test_what_is_no_readable_file_is_named_and_nothing_waits_for_a_pipe(
    files: list[str], tmp_path: Path, helpers_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "HELPER_FROM", helpers_from)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    odd = [str(tmp_path / "pipe"), str(tmp_path / "loop"), "bad\0name", "/nowhere"]
    found = HashCache(tmp_path / "h.db").blake3([*files, *odd])
    assert set(found.digests) == set(files)
    words = ["it is no regular file", "Too many levels of symbolic links", "null", "No such file or directory"]
    assert set(found.unreadable) == set(odd)
    assert all(word in found.unreadable[path] for path, word in zip(odd, words, strict=True))


@WAYS
def test_names_that_are_no_text_are_hashed(tmp_path: Path, helpers_from: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "HELPER_FROM", 1 if helpers_from == 10 else 10)
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\n")
    Path(path).write_bytes(b"x")
    assert HashCache(tmp_path / "h.db").blake3([path]).digests == {path: blake3(b"x").hexdigest()}


def test_a_helper_that_is_killed_costs_time_and_no_digest(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took its share from the queue, wrote one whole record and half of another, and was gone."""
    program = tmp_path / "helper.py"
    program.write_text(
        "import os, signal, sys\n"
        f"sys.path[:0] = [{str(Path(digesting.__file__).parent)!r}, sys.argv[3]]\n"
        "import blake3, digesting\n"
        "paths = os.pread(0, os.fstat(0).st_size, 0).split(b'\\0')\n"
        "rows = list(digesting.digests(paths, digesting.taken(int(sys.argv[2]), len(paths)), blake3.blake3))\n"
        "os.write(1, digesting.packed(rows)[: digesting.RECORD.size * 3 // 2])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(hashing, "HELPER_FROM", 1)
    monkeypatch.setattr(hashing, "_cores", lambda: 1)
    monkeypatch.setattr(digesting, "__file__", str(program))
    found = HashCache(tmp_path / "h.db").blake3(files)
    assert found.digests == {path: blake3(Path(path).read_bytes()).hexdigest() for path in files}


def test_helpers_end_when_nobody_wants_their_answers(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "HELPER_FROM", 1)
    monkeypatch.setattr(hashing, "AT_ONCE", 1)
    rows = hash_all([*files] * 200)
    assert next(rows)[2]
    rows.close()  # type: ignore[attr-defined]
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


class Writes:
    """A hash during which somebody does something to the file, until the clock of the file system has moved on."""

    def __init__(self, data: memoryview, path: Path, act: Callable[[Path], object]) -> None:
        self._hash = blake3(data)
        before = path.stat().st_ctime_ns
        while path.stat().st_ctime_ns == before:
            act(path)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def _replace(path: Path) -> None:
    """As installers do it: the name leads to other bytes from now on."""
    other = path.with_name("other")
    other.write_bytes(b"new")
    other.replace(path)


ACTS: dict[str, Callable[[Path], object]] = {
    "appended": _append,
    "written with its size": lambda path: path.write_bytes(b"y" * 10),
    "cut short": lambda path: os.truncate(path, 3),
    "touched": lambda path: path.chmod(0o600),
    "replaced": _replace,
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_a_file_that_changes_while_it_is_read_has_no_digest(tmp_path: Path, act: Callable[[Path], object]) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 10)
    assert list(digests([os.fsencode(path)], [0], lambda data: Writes(data, path, act))) == [(0, None, CHANGED)]


def test_what_was_just_written_is_not_remembered(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within one tick of the clock it may be written again, and its key stays."""
    monkeypatch.setattr(hashing, "SETTLED_NS", 10**15)
    cache = HashCache(tmp_path / "h.db")
    assert (cache.blake3(files).read, cache.blake3(files).read) == (len(files), len(files))


def test_each_number_is_taken_once(tmp_path: Path) -> None:
    with open(tmp_path / "queue", "w+b") as file:
        fill(file.fileno(), 21)
        one, two = taken(file.fileno(), 21), taken(file.fileno(), 21)
        first = [next(one) for _ in range(3)]
        assert sorted([*first, *two, *one]) == list(range(21))


def test_an_environment_of_five_gigabytes_is_read_in_little_memory(tmp_path: Path) -> None:
    """Sparse files: 5 GB to read, nothing on the disk; and a file of a number no signed 32-bit integer holds."""
    for number, size in enumerate([(3 << 30) + 1, *[128 << 20] * 16]):
        with open(tmp_path / f"lib{number}.so", "wb") as file:
            file.truncate(size)
    program = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from bitgate.tools.provenance import hashing\n"
        "from bitgate.tools.provenance.hashing import HashCache\n"
        "hashing.SETTLED_NS = 0\n"
        "root = Path(sys.argv[1])\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "found = HashCache(root / 'h.db').blake3(map(str, root.glob('*.so')))\n"
        "again = HashCache(root / 'h.db').blake3(map(str, root.glob('*.so')))\n"
        "grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before\n"
        "print(len(found.digests), len(set(found.digests.values())), again.read, grown < 64 * 1024, found.unreadable)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split(maxsplit=4) == ["17", "2", "0", "True", "{}\n"]
