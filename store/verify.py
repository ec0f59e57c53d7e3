"""Verification: read the whole ledger as a stranger would, and name the first row that lies and why.

Opens the file read-only, migrates nothing and trusts nothing in it. Rows are hashed from a plain cursor, as bytes: a
text that is not UTF-8 must be found, not stop the reading.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bitgate.store.artifacts import ArtifactStore
from bitgate.store.chain import GENESIS, row_hash
from bitgate.store.errors import NotFound, StoreError, from_sqlite
from bitgate.store.reading import reading
from bitgate.store.records import Record
from bitgate.store.schema import APPLICATION_ID, KEYS, SCHEMA_VERSION, field, object_problems

_ROWS = "SELECT seq, at, kind, subject, actor, body, prev_hash, hash FROM entries ORDER BY seq"
_Row = tuple[int, bytes, bytes, bytes, bytes, bytes, bytes, bytes]


class Problem(Record):
    """`code` is one of: row_missing, row_edited, row_reordered, chain_broken, head_not_in_chain, guard_changed,
    artifact_missing, artifact_changed, run_rule, derived_changed, file_damaged, ledger_too_new, not_a_ledger."""

    code: str
    message: str
    seq: int | None = None


class VerifyReport(Record):
    """`rows` is how many were read and found good; `head` the hash of the last good one."""

    ok: bool
    rows: int
    first_bad_seq: int | None
    problem: str | None
    head: str
    artifacts: int = 0
    problems: tuple[Problem, ...] = ()


def verify_ledger(path: Path, *, head: str | None = None, artifacts: bool = True) -> VerifyReport:
    """Check every row's hash, the chain, the guards, the rules of runs, and that each artifact has its bytes.

    `head` is a hash pinned earlier, outside: it must be the hash of some row, or history was rewritten or cut off.

    Raises: NotFound (`ledger_missing`), Unavailable when the file cannot be read at all.
    """
    if not path.is_file():
        raise NotFound("ledger_missing", f"{path}: there is no ledger; name its file, such as .bitgate/ledger.db")
    check = _Check(path, head)
    with ThreadPoolExecutor(1) as beside:  # SQLite's own check is as long as ours, and needs no interpreter lock
        pages = beside.submit(_page_problems, path)
        with check.surviving_damage(), reading(path) as connection:
            check.run(connection, artifacts)
        with check.surviving_damage():
            for problem in pages.result():
                check.add("file_damaged", f"{path}: {problem}: the file is damaged, or was edited byte by byte")
    return check.report()


class _Check:
    def __init__(self, path: Path, pinned: str | None) -> None:
        self.path = path
        self.pinned = pinned
        self.rows = 0
        self.head = GENESIS
        self.artifacts = 0
        self.problems: list[Problem] = []

    @contextlib.contextmanager
    def surviving_damage(self) -> Iterator[None]:
        """A file that cannot be read is a finding; a machine that does not let us read is an error."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            # Python itself raises some of these, such as for a text that is not UTF-8, and those have no code.
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF not in _DAMAGE:
                raise from_sqlite(error, self.path) from error
            self.add("file_damaged", f"{self.path}: {error}, after row {self.rows}")

    def add(self, code: str, message: str, seq: int | None = None) -> None:
        self.problems.append(Problem(code=code, message=message, seq=seq))

    def report(self) -> VerifyReport:
        # Rows come first: a dropped trigger matters less than the row that was changed behind its back.
        self.problems.sort(key=lambda problem: (problem.seq is None, problem.seq or 0))
        first = self.problems[0] if self.problems else None
        return VerifyReport(
            ok=first is None,
            rows=self.rows,
            first_bad_seq=first.seq if first else None,
            problem=first.message if first else None,
            head=self.head,
            artifacts=self.artifacts,
            problems=tuple(self.problems),
        )

    def run(self, connection: sqlite3.Connection, artifacts: bool) -> None:
        if not self._known_schema(connection):
            return
        self._chain(connection)
        for problem in object_problems(connection):
            self.add("guard_changed", f"{problem}: somebody changed the file by hand")
        self._run_rules(connection)
        if artifacts:
            self._artifacts(connection)

    def _known_schema(self, connection: sqlite3.Connection) -> bool:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            self._unborn(connection)
            return False
        if version > SCHEMA_VERSION:
            self.add("ledger_too_new", f"{self.path}: has schema version {version}: upgrade bitgate to verify it")
            return False
        return True

    def _unborn(self, connection: sqlite3.Connection) -> None:
        """A process killed while it made the ledger leaves an empty database, in which nothing was ever recorded."""
        if connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone():
            self.add("not_a_ledger", f"{self.path}: this is another program's database, not a bitgate ledger")
        elif self.pinned not in (None, GENESIS):
            self._add_lost_head()

    def _chain(self, connection: sqlite3.Connection) -> None:
        connection.text_factory = bytes
        try:
            pinned_seen = self._follow(connection)
        finally:
            connection.text_factory = str
        if self.pinned is not None and not pinned_seen:
            self._add_lost_head()

    def _add_lost_head(self) -> None:
        self.add(
            "head_not_in_chain",
            f"the pinned head {str(self.pinned)[:80]!r} is no row of this ledger: it was rewritten, cut off, "
            "or replaced by another",
        )

    def _follow(self, connection: sqlite3.Connection) -> bool:
        """Walk to the first row that is not what its predecessor leads to. Says whether the pinned head was passed."""
        expected, previous = 1, GENESIS.encode()
        pinned = self.pinned.encode("utf-8", "replace") if self.pinned is not None else None
        seen = pinned == previous
        try:
            for row in _rows(connection):
                if row[0] != expected or row[6] != previous or _hash(row) != row[7]:
                    self.add(*_diagnosis(connection, row, expected, previous))
                    break
                expected, previous = expected + 1, row[7]
                seen = seen or previous == pinned
        finally:
            self.rows, self.head = expected - 1, previous.decode()
        return seen

    def _run_rules(self, connection: sqlite3.Connection) -> None:
        for seq, message in connection.execute(_RUN_RULES):
            self.add("run_rule", f"row {seq}: {message}", seq)
        for table, what in connection.execute(_DERIVED):
            self.add("derived_changed", f"the table {table} is wrong about {what}: it was changed by hand")

    def _artifacts(self, connection: sqlite3.Connection) -> None:
        store = ArtifactStore(self.path.parent / "artifacts")
        for seq, digest, name in connection.execute(_ARTIFACTS):
            self.artifacts += 1
            if problem := _artifact_problem(store, str(digest)):
                code = "artifact_missing" if "missing" in problem else "artifact_changed"
                self.add(code, f"row {seq}: artifact {name!r} ({str(digest)[:64]}): {problem}", seq)


# SQLITE_ERROR is what a missing table or column gives.
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
_RUN_RULES = f"""
SELECT e.seq, 'it is evidence of a run that was not running then' FROM entries AS e
  WHERE e.kind = 'evidence' AND (
    NOT EXISTS (SELECT 1 FROM entries AS s
      WHERE s.subject = e.{field("run_id")} AND s.kind = 'run_started' AND s.seq < e.seq)
    OR EXISTS (SELECT 1 FROM entries AS f
      WHERE f.subject = e.{field("run_id")} AND f.kind = 'run_finished' AND f.seq < e.seq))
UNION ALL
SELECT f.seq, 'it ends a run that was not running then' FROM entries AS f
  WHERE f.kind = 'run_finished' AND (
    NOT EXISTS (SELECT 1 FROM entries AS s
      WHERE s.subject = f.subject AND s.kind = 'run_started' AND s.seq < f.seq)
    OR EXISTS (SELECT 1 FROM entries AS o
      WHERE o.subject = f.subject AND o.kind = 'run_finished' AND o.seq < f.seq))
ORDER BY 1"""
_OPEN_RUNS = """SELECT s.subject FROM entries AS s WHERE s.kind = 'run_started' AND NOT EXISTS
  (SELECT 1 FROM entries AS f WHERE f.subject = s.subject AND f.kind = 'run_finished')"""
# Each body is parsed once for all its keys.
_KEY_PATHS = ", ".join(f"'$.{place}'" for place in KEYS.values())
_WRONG_KEY = f"json_extract(e.body, {_KEY_PATHS}) IS NOT json_array({', '.join(f'k.{name}' for name in KEYS)})"
_DERIVED = f"""
SELECT 'running', * FROM ({_OPEN_RUNS} EXCEPT SELECT run_id FROM running)
UNION ALL SELECT 'running', * FROM (SELECT run_id FROM running EXCEPT {_OPEN_RUNS})
UNION ALL SELECT 'evidence_keys', 'row ' || e.seq FROM entries AS e LEFT JOIN evidence_keys AS k ON k.seq = e.seq
  WHERE e.kind = 'evidence' AND (k.seq IS NULL OR {_WRONG_KEY})
UNION ALL SELECT 'evidence_keys', 'row ' || k.seq FROM evidence_keys AS k
  WHERE NOT EXISTS (SELECT 1 FROM entries AS e WHERE e.seq = k.seq AND e.kind = 'evidence')"""
_ARTIFACTS = """SELECT MIN(e.seq), a.value ->> '$.digest' AS digest, a.value ->> '$.name'
  FROM entries AS e, json_each(e.body, '$.artifacts') AS a GROUP BY digest ORDER BY 1"""


def _page_problems(path: Path) -> list[str]:
    """Includes each index against its table: a row that an index hides would be missing from every listing."""
    with reading(path) as connection:
        found = connection.execute("PRAGMA integrity_check(3)").fetchall()
    return [text for (text,) in found if text != "ok"]


def _rows(connection: sqlite3.Connection) -> Iterator[_Row]:
    yield from connection.execute(_ROWS)  # one by one: where the file is damaged, the rows before it still count


def _hash(row: _Row, seq: int | None = None) -> bytes | None:
    """The hash the row's content has, under another number when `seq` is given; None when a text is not UTF-8."""
    number, at, kind, subject, actor, body, prev_hash, _ = row
    try:
        labels = at.decode(), kind.decode(), subject.decode(), actor.decode()
        return row_hash(number if seq is None else seq, *labels, body, prev_hash.decode()).encode()
    except (UnicodeDecodeError, AttributeError, TypeError):
        return None


def _diagnosis(connection: sqlite3.Connection, row: _Row, expected: int, previous: bytes) -> tuple[str, str, int]:
    seq, stored = row[0], row[7]
    if _hash(row) == stored:
        if seq != expected:
            rows = f"row {expected} is" if seq == expected + 1 else f"rows {expected} to {seq - 1} are"
            return "row_missing", f"{rows} missing: row {seq} comes next", expected
        return "chain_broken", f"row {seq} does not follow row {seq - 1}: history before it was rewritten", seq
    if seq != expected:
        return "row_missing", f"row {expected} is missing: row {seq} comes next, and was edited as well", expected
    count = connection.execute("SELECT MAX(seq) FROM entries").fetchone()[0]
    original = next((number for number in range(1, count + 2) if _hash(row, number) == stored), None)
    if original is not None:
        return "row_reordered", f"row {seq} was reordered: it was written as row {original}", seq
    follows = "" if row[6] == previous else f" and does not follow row {seq - 1}"
    return "row_edited", f"row {seq} was edited: its content does not have its hash{follows}", seq


def _artifact_problem(store: ArtifactStore, digest: str) -> str | None:
    try:
        return store.problem(digest)
    except StoreError as error:
        return f"its file cannot be read: {error}"
