from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from bitgate.store import GENESIS, Head, Refused, Store, StoreError, Unavailable, verify_ledger
from bitgate.store.kinds import KINDS
from bitgate.store.records import Evidence, Finding


def test_a_row_hashes_to_what_anybody_can_compute(store: Store) -> None:
    assert store.head() == Head(0, GENESIS)
    entry = store.append("gate", "C3", {"state": "open", "名": ["漢", 1.5, None, '"\n']}, "agent \u202e7")
    text = json.dumps(
        {name: getattr(entry, name) for name in ("seq", "at", "kind", "subject", "actor", "body", "prev_hash")},
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    )
    assert entry.hash == hashlib.sha256(text.encode()).hexdigest()
    assert store.head() == Head(1, entry.hash)


def test_each_row_names_the_one_before(store: Store) -> None:
    made = [store.append("gate", f"C{n}", {}, "agent") for n in range(3)]
    assert [entry.prev_hash for entry in made] == [GENESIS, made[0].hash, made[1].hash]
    assert list(store.entries()) == made


def test_entries_are_chosen_by_kind_subject_and_place(store: Store) -> None:
    with store.transaction():
        for n in range(1200):  # more than two pages
            store.append("gate" if n % 2 else "token", f"C{n % 3}", {"n": n}, "agent")
    assert [entry.seq for entry in store.entries()] == list(range(1, 1201))
    assert [entry.body["n"] for entry in store.entries("gate", "C1", after_seq=600)] == list(range(601, 1200, 6))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_has_exactly_one_way_in(store: Store, kind: str) -> None:
    if KINDS[kind].through != "append":
        with pytest.raises(Refused, match=rf"written by {KINDS[kind].through}\(\)"):
            store.append(kind, "x", {}, "agent")
    elif KINDS[kind].body is None:
        assert store.append(kind, "x", {}, "agent").seq == 1
    else:
        with pytest.raises(Refused, match=r"body\.\w+: Field required"):
            store.append(kind, "x", {}, "agent")


def test_an_unknown_kind_is_refused_with_the_known_ones(store: Store) -> None:
    with pytest.raises(Refused, match="allowed are baseline, evidence, gate") as caught:
        store.append("gates", "C3", {}, "agent")
    assert caught.value.code == "unknown_kind"


def test_a_kind_added_later_is_known_to_an_older_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.delitem(KINDS, "gate")
        Store.open(path).close()
    with Store.open(path) as store:
        store.append("gate", "C3", {}, "agent")
    assert verify_ledger(path).ok


FORGED = (
    "INSERT {or_replace} INTO entries SELECT {seq}, at, kind, subject, 'mallory', body, {prev}, '{hash}' FROM entries"
)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE entries SET actor = 'mallory'",
        "UPDATE entries SET seq = seq + 1",
        "DELETE FROM entries",
        "DELETE FROM entries WHERE seq = 2",
        FORGED.format(or_replace="OR REPLACE", seq=2, prev="prev_hash", hash="f" * 64) + " WHERE seq = 2",
        FORGED.format(or_replace="OR REPLACE", seq=3, prev="prev_hash", hash="f" * 64) + " WHERE seq = 2",
        FORGED.format(or_replace="OR IGNORE", seq=1, prev="prev_hash", hash="f" * 64) + " WHERE seq = 1",
        FORGED.format(or_replace="", seq=4, prev="hash", hash="f" * 64) + " WHERE seq = 2",
        FORGED.format(or_replace="", seq="NULL", prev="prev_hash", hash="f" * 64) + " WHERE seq = 2",
        FORGED.format(or_replace="", seq=3, prev="hash", hash="short") + " WHERE seq = 2",
        "INSERT INTO entries SELECT 3, at, kind, subject, actor, 'not json', hash, hash FROM entries WHERE seq = 2",
        "INSERT INTO entries SELECT 3, at, kind, subject, actor, '[]', hash, hash FROM entries WHERE seq = 2",
        "INSERT INTO entries SELECT 3, at, 'rumour', subject, actor, body, hash, 'f' FROM entries WHERE seq = 2",
    ],
)
@pytest.mark.parametrize("recursive", ["ON", "OFF"])
def test_rows_cannot_be_changed_by_sql(path: Path, store: Store, sql: str, recursive: str) -> None:
    store.append("gate", "C3", {}, "agent")
    store.append("gate", "C4", {}, "agent")
    before = list(store.entries())
    raw = sqlite3.connect(path, isolation_level=None)
    raw.execute(f"PRAGMA recursive_triggers = {recursive}")
    raw.execute("PRAGMA foreign_keys = ON")
    try:
        with pytest.raises(sqlite3.IntegrityError):
            raw.execute(sql)
    finally:
        raw.close()
    assert list(store.entries()) == before


def forge(store: Store, kind: str, subject: str, body: dict[str, object]) -> None:
    """Append behind the API's back, with a good hash: only the triggers stand in the way."""
    text = json.dumps(body, allow_nan=False)
    with store.transaction():
        store.ledger._link(kind, subject, "mallory", text)


def test_the_file_itself_refuses_evidence_of_a_run_that_is_not_running(
    store: Store, finished: Callable[..., Evidence]
) -> None:
    old = finished()
    before = store.head()
    for kind, subject, body, message in (
        ("evidence", "ev_x", {"run_id": old.run_id}, "evidence needs a run that is running"),
        ("evidence", "ev_x", {"run_id": "run_x"}, "evidence needs a run that is running"),
        ("evidence", "ev_x", {}, "evidence needs a run that is running"),
        ("run_finished", old.run_id, {"state": "lost"}, "this run is not running"),
        ("run_finished", "run_x", {"state": "lost"}, "this run is not running"),
        ("run_started", old.run_id, {"tool": "x"}, "this run was started before"),
    ):
        with pytest.raises(Refused, match=message) as caught:
            forge(store, kind, subject, body)  # type: ignore[arg-type]
        assert caught.value.code == "ledger_rule"
    assert store.head() == before


def test_a_transaction_is_all_or_nothing(store: Store) -> None:
    store.append("gate", "C3", {}, "agent")
    before = store.head()
    with pytest.raises(ZeroDivisionError), store.transaction():
        store.append("gate", "C4", {}, "agent")
        raise ZeroDivisionError
    assert store.head() == before
    store.append("gate", "C4", {}, "agent")
    assert store.head().seq == 2


def test_an_inner_failure_undoes_only_itself(store: Store, finding: Callable[..., Finding]) -> None:
    run = store.start_run("run_compare", {}, "agent")
    with store.transaction():
        store.append("gate", "C3", {}, "agent")
        with pytest.raises(Refused):
            store.finish_run(run.id, "finished", finding=finding(), actor=" ")
        store.append("gate", "C4", {}, "agent")
    assert [entry.kind for entry in store.entries()] == ["run_started", "gate", "gate"]


def test_nobody_writes_inside_anothers_transaction(path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bitgate.store.opening.BUSY_SECONDS", 0.05)
    with Store.open(path) as other, store.transaction():
        assert other.head() == store.head()  # reading goes on
        with pytest.raises(Unavailable, match="another process held the write lock") as caught:
            other.append("gate", "C3", {}, "agent")
        assert caught.value.code == "ledger_locked"
    assert store.append("gate", "C3", {}, "agent").seq == 1


def test_threads_of_one_store_append_at_once(path: Path, store: Store) -> None:
    errors: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for n in range(20):
                store.append("gate", "C3", {"n": n}, name)
        except StoreError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(f"thread {n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert verify_ledger(path).rows == 160
    assert {name: sum(entry.actor == name for entry in store.entries()) for name in ("thread 0", "thread 7")} == {
        "thread 0": 20,
        "thread 7": 20,
    }


def test_a_closed_store_says_so(path: Path) -> None:
    store = Store.open(path)
    store.close()
    with pytest.raises(Unavailable, match="this store was closed"):
        store.head()
