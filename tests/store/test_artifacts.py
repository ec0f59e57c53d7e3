from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest
from blake3 import blake3

from bitgate.store import ArtifactStore, NotFound, Refused, StoreError
from bitgate.store.artifacts import clean_name
from bitgate.store.records import ArtifactRef


@pytest.fixture
def artifacts(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "artifacts")


def files(artifacts: ArtifactStore) -> list[Path]:
    return [file for file in artifacts.root.rglob("*") if file.is_file()]


def test_bytes_are_stored_under_their_blake3(artifacts: ArtifactStore) -> None:
    ref = artifacts.put_bytes(b"rows", "rows.csv")
    assert ref == ArtifactRef(name="rows.csv", digest=blake3(b"rows").hexdigest(), size=4, media_type="text/csv")
    assert artifacts.path(ref.digest).read_bytes() == b"rows"
    with artifacts.open(ref.digest) as file:
        assert file.read() == b"rows"
    assert artifacts.path(ref.digest).stat().st_mode & 0o222 == 0


def test_a_file_of_many_chunks_is_stored_whole(
    artifacts: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bitgate.store.artifacts._CHUNK", 1000)
    data = bytes(range(256)) * 40
    (tmp_path / "rows.bin").write_bytes(data)
    ref = artifacts.put_file(tmp_path / "rows.bin")
    assert (ref.digest, ref.size, ref.name) == (blake3(data).hexdigest(), len(data), "rows.bin")
    assert ref.media_type == "application/octet-stream"
    assert artifacts.problem(ref.digest) is None


def test_the_same_bytes_are_one_file_under_any_name(artifacts: ArtifactStore) -> None:
    first = artifacts.put_bytes(b"same", "a.txt")
    second = artifacts.put_bytes(b"same", "b.json", "application/json")
    assert first.digest == second.digest
    assert len(files(artifacts)) == 1


def test_many_may_put_the_same_bytes_at_once(artifacts: ArtifactStore) -> None:
    errors: list[StoreError] = []

    def put() -> None:
        try:
            for n in range(20):
                artifacts.put_bytes(b"%d" % n * 1000, "x")
                artifacts.sweep()
        except StoreError as error:
            errors.append(error)

    threads = [threading.Thread(target=put) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(blake3(file.read_bytes()).hexdigest() for file in files(artifacts)) == sorted(
        file.name for file in files(artifacts)
    )
    assert len(files(artifacts)) == 20


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("plot.png", "plot.png"),
        ("../../etc/passwd", "passwd"),
        ("C:\\runs\\plot.png", "plot.png"),
        ("a/b/", "artifact"),
        ("..", "artifact"),
        ("", "artifact"),
        (".bashrc", "bashrc"),
        ("gpj\u202e.exe\n\x00", "gpj.exe"),
        ("caf\udce9.txt", "udce9.txt"),
        ("x" * 500, "x" * 120),
        ("漢字 1.png", "漢字 1.png"),
    ],
)
def test_names_are_made_harmless(given: str, kept: str) -> None:
    assert clean_name(given) == kept


@pytest.mark.parametrize("digest", ["", "../../ledger.db", "A" * 64, "a" * 63, "a" * 64 + "\n", "a/" * 32])
def test_a_digest_cannot_leave_the_store(artifacts: ArtifactStore, digest: str) -> None:
    for ask in (artifacts.path, artifacts.open):
        with pytest.raises(Refused, match="allowed are 64 lowercase hex digits"):
            ask(digest)
    assert artifacts.problem(digest) is not None


def test_what_is_missing_is_said(artifacts: ArtifactStore, tmp_path: Path) -> None:
    for ask, code in (
        (lambda: artifacts.path("a" * 64), "artifact_missing"),
        (lambda: artifacts.put_file(tmp_path / "none"), "file_missing"),
        (lambda: artifacts.put_file(tmp_path), "file_missing"),
    ):
        with pytest.raises(NotFound) as caught:
            ask()
        assert caught.value.code == code


@pytest.mark.parametrize("kind", ["text", "text/html\r\nX: y", "../x", "text/" + "é"])
def test_a_media_type_that_could_break_a_header_is_refused(artifacts: ArtifactStore, kind: str) -> None:
    with pytest.raises(Refused, match="allowed is the form type/subtype"):
        artifacts.put_bytes(b"", "x", kind)


def test_a_changed_file_is_found_and_healed_by_putting_it_again(artifacts: ArtifactStore) -> None:
    ref = artifacts.put_bytes(b"true", "x")
    path = artifacts.path(ref.digest)
    path.chmod(0o644)
    path.write_bytes(b"lies")
    assert "was changed" in str(artifacts.problem(ref.digest))
    artifacts.put_bytes(b"true", "x")
    assert artifacts.problem(ref.digest) is None


def test_leftovers_of_a_killed_put_are_swept_and_a_living_one_is_not(artifacts: ArtifactStore) -> None:
    ref = artifacts.put_bytes(b"kept", "x")
    incoming = artifacts.root / "incoming"
    (incoming / "dead").write_bytes(b"half")
    with (incoming / "alive").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert artifacts.sweep() == 1
        assert [path.name for path in incoming.iterdir()] == ["alive"]
    assert artifacts.sweep() == 1
    assert artifacts.problem(ref.digest) is None


def test_a_put_that_fails_leaves_nothing(artifacts: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bitgate.store.artifacts.os.fsync", full)
    with pytest.raises(StoreError, match="free some space") as caught:
        artifacts.put_bytes(b"x", "x")
    assert caught.value.code == "disk_full"
    assert files(artifacts) == []


def test_sweeping_a_store_that_was_never_used_makes_nothing(artifacts: ArtifactStore) -> None:
    assert artifacts.sweep() == 0
    assert not artifacts.root.exists()
