from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlite_utils import Database, Migrations

from bitgate.store import Damaged, Store, verify_ledger
from bitgate.store.migrations import MIGRATIONS, migrate
from bitgate.store.opening import connect, immediate
from bitgate.store.records import Evidence
from bitgate.store.schema import APPLICATION_ID, OBJECTS, SCHEMA_VERSION, TRIGGERS

TABLES = ("entries", "evidence_keys", "kinds", "running")
NAMES = [migration.name for migration in MIGRATIONS._migrations]


def triggers(connection: sqlite3.Connection) -> set[tuple[str, str]]:
    return set(connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'"))


def ours() -> set[tuple[str, str]]:
    return {(trigger.name, trigger.sql) for trigger in TRIGGERS}


def further(change: Callable[[Database], None]) -> Migrations:
    """Our migrations and one more."""
    migrations = Migrations(MIGRATIONS.name)
    for migration in MIGRATIONS._migrations:
        migrations(name=migration.name)(migration.fn)
    migrations(name="m999")(change)
    return migrations


def test_the_schema_version_counts_the_migrations() -> None:
    assert len(NAMES) == SCHEMA_VERSION


def test_changing_guards_or_views_needs_a_new_schema_version() -> None:
    """A ledger made by an older bitgate must get them: raise SCHEMA_VERSION, add a migration, and a row here."""
    digest = hashlib.sha256("\n".join(item.sql for item in OBJECTS).encode()).hexdigest()[:16]
    assert {SCHEMA_VERSION: digest} == {1: "d4aca532e2c4e125"}


@pytest.mark.parametrize("stop", range(1, len(NAMES) + 1))
def test_every_trigger_exists_after_every_migration(tmp_path: Path, stop: int) -> None:
    path = tmp_path / "ledger.db"
    upto = Migrations(MIGRATIONS.name)
    for migration in MIGRATIONS._migrations[:stop]:
        upto(name=migration.name)(migration.fn)
    connection = connect(path)
    with immediate(connection, path):
        migrate(connection, upto, stop)
    assert triggers(connection) == ours()
    connection.close()


def test_transform_alone_loses_the_triggers_and_a_migration_with_it_does_not(
    path: Path, store: Store, finished: Callable[..., Evidence]
) -> None:
    finished(check="batch")
    store.start_run("run_compare", {}, "agent")
    store.close()

    def rebuild(db: Database) -> None:
        db.table("entries").transform(types={"at": str}, column_order=["seq", "hash"])
        db.table("evidence_keys").transform(rename={"verdict": "v"})
        db.table("evidence_keys").transform(rename={"v": "verdict"})
        db.table("running").transform(rename={"seq": "since"})
        db.table("running").transform(rename={"since": "seq"})
        lost.append(triggers(db.conn))

    lost: list[set[tuple[str, str]]] = []
    connection = connect(path)
    with immediate(connection, path):
        migrate(connection, further(rebuild))
    assert lost == [set()]
    assert triggers(connection) == ours()
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        connection.execute("UPDATE entries SET actor = 'mallory'")
    assert Database(connection).table("entries").strict
    connection.close()
    assert verify_ledger(path).ok
    with Store.open(path) as again:
        assert [evidence.check for evidence in again.list_evidence(check="batch")] == ["batch"]
        assert len(again.running_runs()) == 1


def test_a_migration_that_fails_leaves_the_ledger_as_it_was(path: Path, store: Store) -> None:
    store.append("gate", "C3", {}, "agent")

    def fail(db: Database) -> None:
        db.table("entries").transform(drop={"actor"})
        raise ZeroDivisionError

    connection = connect(path)
    with pytest.raises(ZeroDivisionError), immediate(connection, path):
        migrate(connection, further(fail), 2)
    assert triggers(connection) == ours()
    connection.close()
    assert store.append("gate", "C4", {}, "agent").actor == "agent"
    assert verify_ledger(path).ok


def test_a_migration_that_loses_what_a_guard_needs_is_refused(path: Path, store: Store) -> None:
    connection = connect(path)
    with pytest.raises(Exception, match="no such column: body"), immediate(connection, path):
        migrate(connection, further(lambda db: db.table("entries").transform(rename={"body": "text"}) and None))
    connection.close()
    assert store.append("gate", "C3", {}, "agent").seq == 1


def test_the_file_says_what_it_is(path: Path, store: Store) -> None:
    expected = {"application_id": APPLICATION_ID, "user_version": SCHEMA_VERSION, "journal_mode": "wal"}
    assert {name: store.ledger.rows(f"PRAGMA {name}")[0][0] for name in expected} == expected
    strict = dict(
        store.ledger.rows("SELECT name, strict FROM pragma_table_list WHERE schema = 'main' AND type = 'table'")
    )
    assert {name: strict[name] for name in TABLES} == dict.fromkeys(TABLES, 1)


def test_a_ledger_whose_guard_was_dropped_is_not_opened(path: Path, store: Store) -> None:
    store.close()
    raw = sqlite3.connect(path)
    raw.execute("DROP TRIGGER entries_no_update")
    raw.close()
    with pytest.raises(Damaged, match="trigger entries_no_update is missing.*bitgate verify"):
        Store.open(path)
