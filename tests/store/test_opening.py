from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bitgate.store import Damaged, NotFound, Store, StoreError, Unavailable, verify_ledger
from bitgate.store.schema import SCHEMA_VERSION


def code_of(path: Path) -> str:
    with pytest.raises(StoreError) as caught:
        Store.open(path)
    assert str(path) in str(caught.value)
    return caught.value.code


def test_opening_makes_the_folders_and_the_ledger(tmp_path: Path) -> None:
    path = tmp_path / "project" / ".bitgate" / "ledger.db"
    with Store.open(path) as store:
        store.append("gate", "C3", {}, "agent")
    with Store.open(path) as store:
        assert store.head().seq == 1


def test_an_empty_file_becomes_a_ledger(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    with Store.open(path) as store:
        assert store.head().seq == 0


def test_a_file_that_is_not_a_database_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"not a database, but a long enough text to have a header\n" * 100)
    before = path.read_bytes()
    assert code_of(path) == "not_a_ledger"
    assert path.read_bytes() == before


def test_another_programs_database_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE recipes (name TEXT)")
    other.close()
    before = path.read_bytes()
    assert code_of(path) == "not_a_ledger"
    assert path.read_bytes() == before


def test_a_later_versions_ledger_is_refused(path: Path, store: Store) -> None:
    store.close()
    raw = sqlite3.connect(path)
    raw.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    raw.close()
    assert code_of(path) == "ledger_too_new"
    report = verify_ledger(path)
    assert (report.ok, report.problems[0].code) == (False, "ledger_too_new")


def test_a_folder_is_not_a_ledger(tmp_path: Path) -> None:
    assert code_of(tmp_path) == "not_a_ledger"


def test_a_path_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert code_of(tmp_path / "file" / "ledger.db") == "store_io"


def test_a_damaged_file_is_refused_and_verification_says_so(path: Path, store: Store) -> None:
    for n in range(200):
        store.append("gate", "C3", {"n": n, "text": "x" * 500}, "agent")
    store.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(b"\xff" * 8192)
    report = verify_ledger(path)
    assert not report.ok
    assert 0 < report.rows < 200
    assert {"file_damaged"} <= {problem.code for problem in report.problems}
    with pytest.raises(Damaged) as caught, Store.open(path) as opened:
        list(opened.entries())
    assert caught.value.code == "ledger_corrupt"


def test_a_full_disk_is_said_and_nothing_is_half_written(path: Path, store: Store) -> None:
    store.append("gate", "C3", {}, "agent")
    before = store.head()
    pages = store.ledger.rows("PRAGMA page_count")[0][0]
    store.ledger.rows(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(Unavailable, match="free some space") as caught:
        for _ in range(200):
            run = store.start_run("run_compare", {"text": "x" * 1000}, "agent")
    assert caught.value.code == "disk_full"
    store.ledger.rows("PRAGMA max_page_count = 1000000")
    assert all(entry.seq > before.seq for entry in store.entries("run_started"))
    run = store.start_run("run_compare", {}, "agent")
    assert run in store.running_runs()
    assert verify_ledger(path).ok


def test_a_file_size_limit_ends_writing_and_the_ledger_verifies(path: Path, store: Store) -> None:
    signal_before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, limits[1]))
    try:
        with pytest.raises(Unavailable) as caught:
            for _ in range(2000):
                store.append("gate", "C3", {"text": "x" * 1000}, "agent")
        with pytest.raises(Unavailable) as of_artifact:
            store.artifacts.put_bytes(b"x" * 500_000, "plot.png")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, signal_before)
    assert caught.value.code in ("ledger_io", "disk_full")
    assert of_artifact.value.code == "disk_full"
    assert [file for file in store.artifacts.root.rglob("*") if file.is_file()] == []
    head = store.head()
    assert store.append("gate", "C3", {}, "agent").seq == head.seq + 1
    assert verify_ledger(path).ok


@pytest.fixture
def as_nobody() -> Iterator[Path]:
    """A folder owned by this user that may be read only, seen by a user whom permissions bind (root is not)."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    if os.geteuid() != os.getuid():
        os.seteuid(os.getuid())
    folder.chmod(0o755)
    shutil.rmtree(folder)


def become_nobody(folder: Path) -> None:
    folder.chmod(0o555)
    if os.getuid() == 0:
        os.seteuid(65534)


def test_a_folder_that_may_not_be_written_is_said(as_nobody: Path) -> None:
    become_nobody(as_nobody)
    assert code_of(as_nobody / "ledger.db") in ("ledger_unopenable", "ledger_read_only")
    assert code_of(as_nobody / "new" / "ledger.db") == "store_read_only"


def test_a_ledger_that_may_only_be_read_is_refused_for_writing_and_can_be_verified(as_nobody: Path) -> None:
    path = as_nobody / "ledger.db"
    with Store.open(path) as store:
        entry = store.append("gate", "C3", {}, "agent")
    path.chmod(0o444)
    become_nobody(as_nobody)
    assert code_of(path) in ("ledger_unopenable", "ledger_read_only")
    assert verify_ledger(path, head=entry.hash).ok


def test_verifying_what_is_not_there_is_an_error(path: Path) -> None:
    with pytest.raises(NotFound, match="there is no ledger"):
        verify_ledger(path)
    assert not path.exists()


def test_verifying_another_programs_file_finds_a_problem(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"x" * 10_000)
    assert verify_ledger(path).problems[0].code == "file_damaged"
    path.unlink()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE recipes (name TEXT)")
    other.close()
    assert verify_ledger(path).problems[0].code == "not_a_ledger"


def test_a_ledger_whose_maker_was_killed_at_once_is_an_empty_one(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    assert verify_ledger(path).ok
    assert verify_ledger(path, head="f" * 64).problems[0].code == "head_not_in_chain"
    with Store.open(path) as store:
        assert store.append("gate", "C3", {}, "agent").seq == 1


def test_many_processes_may_make_the_ledger_at_once(path: Path, writers: Callable[..., subprocess.Popen[str]]) -> None:
    started = [writers("append", path, 10) for _ in range(8)]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.wait(60) for process in started] == [0] * 8
    with Store.open(path) as store:
        assert len(list(store.entries("evidence"))) == 8 * 10
        assert store.running_runs() == []
        assert len({entry.actor for entry in store.entries("run_started")}) == 8
    report = verify_ledger(path)
    assert (report.ok, report.rows, report.artifacts) == (True, 8 * 10 * 3, 10)


def test_a_ledger_whose_log_was_left_behind_is_verified_with_the_rows_in_it_where_nothing_can_be_written(
    as_nobody: Path, tmp_path: Path
) -> None:
    """A read-only mount of a server that is running, or died: its newest rows are in the log alone."""
    with Store.open(tmp_path / "ledger.db") as store:
        store.ledger.rows("PRAGMA wal_autocheckpoint = 0")
        entry = store.append("gate", "C3", {}, "agent")
        for name in ("ledger.db", "ledger.db-wal"):
            shutil.copyfile(tmp_path / name, as_nobody / name)
            (as_nobody / name).chmod(0o444)
    become_nobody(as_nobody)
    report = verify_ledger(as_nobody / "ledger.db", head=entry.hash)
    assert report.ok and (report.rows, report.head) == (entry.seq, entry.hash)
    assert sorted(path.name for path in as_nobody.iterdir()) == ["ledger.db", "ledger.db-wal"]
