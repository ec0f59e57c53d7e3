"""Schema changes, in order. Each runs once, all pending ones in one transaction."""

from __future__ import annotations

import sqlite3

from sqlite_utils import Database, Migrations

from bitgate.store.errors import Damaged
from bitgate.store.schema import APPLICATION_ID, SCHEMA_VERSION, create_objects, drop_objects, object_problems

MIGRATIONS = Migrations("bitgate_store")


@MIGRATIONS()
def m001_ledger(db: Database) -> None:
    db.execute("CREATE TABLE kinds (kind TEXT PRIMARY KEY, subject TEXT NOT NULL, meaning TEXT NOT NULL) STRICT")
    db.execute("""
        CREATE TABLE entries (
          seq INTEGER PRIMARY KEY,
          at TEXT NOT NULL CHECK (at GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]T*Z'),
          kind TEXT NOT NULL REFERENCES kinds (kind),
          subject TEXT NOT NULL CHECK (subject <> ''),
          actor TEXT NOT NULL CHECK (actor <> ''),
          body TEXT NOT NULL,  -- a trigger asks for a JSON object: a CHECK would be paid at every integrity check
          prev_hash TEXT NOT NULL CHECK (length(prev_hash) = 64),
          hash TEXT NOT NULL UNIQUE CHECK (length(hash) = 64)
        ) STRICT""")
    # Derived from entries by triggers: evidence is found, and what runs is found, without reading all that ever was.
    db.execute("""
        CREATE TABLE evidence_keys (
          seq INTEGER PRIMARY KEY REFERENCES entries (seq),
          tool TEXT NOT NULL,
          "check" TEXT,
          verdict TEXT NOT NULL,
          rollout TEXT,  -- the digests of the sides that gates are about
          trainer TEXT,
          baseline TEXT
        ) STRICT""")
    db.execute("CREATE TABLE running (run_id TEXT PRIMARY KEY, seq INTEGER NOT NULL) STRICT")


def migrate(connection: sqlite3.Connection, migrations: Migrations = MIGRATIONS, version: int = SCHEMA_VERSION) -> None:
    """Apply what is pending. The caller holds the write transaction, so that nobody sees a half-made ledger.

    Raises: Damaged (`ledger_damaged`) when a guard is missing afterwards.
    """
    db = Database(connection, recursive_triggers=False, execute_plugins=False)
    drop_objects(connection)
    migrations.apply(db)
    create_objects(connection)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {version}")
    if problems := object_problems(connection):
        raise Damaged("ledger_damaged", f"after the migration {'; '.join(problems)}")
