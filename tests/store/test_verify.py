from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from bitgate.store import GENESIS, Store, verify_ledger
from bitgate.store.chain import row_hash
from bitgate.store.records import Evidence
from bitgate.store.schema import TRIGGERS

ROWS = 20


@pytest.fixture
def ledger(path: Path) -> Path:
    with Store.open(path) as store:
        for n in range(ROWS):
            store.append("gate", f"C{n % 11}", {"n": n, "figure": 0.1}, "agent")
    return path


def tamper(path: Path, *statements: str, restore: bool = True) -> None:
    """Change the file as its owner can: drop the guards, change rows, put the guards back."""
    raw = sqlite3.connect(path, isolation_level=None)
    for trigger in TRIGGERS:
        raw.execute(f"DROP TRIGGER {trigger.name}")
    for statement in statements:
        raw.execute(statement)
    for trigger in TRIGGERS if restore else ():
        raw.execute(trigger.sql)
    raw.close()


def test_an_honest_ledger_verifies(ledger: Path) -> None:
    with Store.open(ledger) as store:
        head = store.head()
    report = verify_ledger(ledger, head=head.hash)
    assert report.model_dump() == {
        "ok": True,
        "rows": ROWS,
        "first_bad_seq": None,
        "problem": None,
        "head": head.hash,
        "artifacts": 0,
        "problems": (),
    }


def test_an_empty_ledger_verifies(path: Path, store: Store) -> None:
    report = verify_ledger(path, head=GENESIS)
    assert (report.ok, report.rows, report.head) == (True, 0, GENESIS)


@pytest.mark.parametrize(
    ("statements", "seq", "code", "words"),
    [
        (["UPDATE entries SET actor = 'mallory' WHERE seq = 7"], 7, "row_edited", "row 7 was edited"),
        (
            ["UPDATE entries SET body = replace(body, '0.1', '0.2') WHERE seq = 20"],
            20,
            "row_edited",
            "row 20 was edited",
        ),
        (["UPDATE entries SET body = replace(body, ':', ': ') WHERE seq = 3"], 3, "row_edited", "row 3 was edited"),
        (["UPDATE entries SET at = replace(at, '2', '1') WHERE seq = 4"], 4, "row_edited", "row 4 was edited"),
        (["UPDATE entries SET kind = 'token' WHERE seq = 4"], 4, "row_edited", "row 4 was edited"),
        (["UPDATE entries SET subject = 'C9' WHERE seq = 1"], 1, "row_edited", "row 1 was edited"),
        (["UPDATE entries SET hash = replace(hash, 'a', 'b') WHERE seq = 6"], 6, "row_edited", "row 6 was edited"),
        (["UPDATE entries SET actor = CAST(x'ff' AS TEXT) WHERE seq = 7"], 7, "row_edited", "row 7 was edited"),
        (
            ["UPDATE entries SET body = 'x' WHERE seq = 7"],
            7,
            "row_edited",
            "row 7 was edited",
        ),
        (["DELETE FROM entries WHERE seq = 9"], 9, "row_missing", "row 9 is missing: row 10 comes next"),
        (["DELETE FROM entries WHERE seq BETWEEN 2 AND 8"], 2, "row_missing", "rows 2 to 8 are missing"),
        (["DELETE FROM entries WHERE seq = 1"], 1, "row_missing", "row 1 is missing"),
        (
            ["DELETE FROM entries WHERE seq = 9", "UPDATE entries SET seq = -seq WHERE seq > 9"]
            + ["UPDATE entries SET seq = -seq - 1 WHERE seq < 0"],
            9,
            "row_reordered",
            "it was written as row 10",
        ),
        (
            ["UPDATE entries SET seq = -5 WHERE seq = 5", "UPDATE entries SET seq = 5 WHERE seq = 6"]
            + ["UPDATE entries SET seq = 6 WHERE seq = -5"],
            5,
            "row_reordered",
            "row 5 was reordered: it was written as row 6",
        ),
    ],
)
def test_a_changed_row_is_named_with_the_reason(
    ledger: Path, statements: list[str], seq: int, code: str, words: str
) -> None:
    tamper(ledger, *statements)
    report = verify_ledger(ledger)
    assert (report.ok, report.first_bad_seq, report.rows) == (False, seq, seq - 1)
    assert report.problems[0].code == code
    assert words in str(report.problem)


def rewrite(path: Path, first: int) -> None:
    """What a careful forger does: change a row and compute every later hash again."""
    raw = sqlite3.connect(path, isolation_level=None)
    rows = raw.execute(
        "SELECT seq, at, kind, subject, body, prev_hash FROM entries WHERE seq >= ?", (first,)
    ).fetchall()
    previous = rows[0][5]
    raw.close()
    changes = []
    for seq, at, kind, subject, body, _ in rows:
        digest = row_hash(seq, at, kind, subject, "mallory", body.encode(), previous)
        changes.append(f"UPDATE entries SET actor='mallory', prev_hash='{previous}', hash='{digest}' WHERE seq={seq}")
        previous = digest
    tamper(path, *changes)


def test_a_rewritten_history_is_exposed_by_the_pinned_head_alone(ledger: Path) -> None:
    with Store.open(ledger) as store:
        pinned = store.head().hash
    rewrite(ledger, 15)
    assert verify_ledger(ledger).ok
    report = verify_ledger(ledger, head=pinned)
    assert [problem.code for problem in report.problems] == ["head_not_in_chain"]
    assert (report.ok, report.first_bad_seq) == (False, None)


def test_rows_cut_off_at_the_end_are_exposed_by_the_pinned_head(ledger: Path) -> None:
    with Store.open(ledger) as store:
        pinned = store.head().hash
    tamper(ledger, "DELETE FROM entries WHERE seq > 18")
    assert verify_ledger(ledger).ok
    assert "it was rewritten, cut off" in str(verify_ledger(ledger, head=pinned).problem)


def test_a_ledger_that_grew_still_holds_the_pinned_head(ledger: Path) -> None:
    with Store.open(ledger) as store:
        pinned = store.head().hash
        store.append("gate", "C3", {}, "agent")
    assert verify_ledger(ledger, head=pinned).ok


@pytest.mark.parametrize("wrong", ["", "f" * 64, "not a hash", "\udce9"])
def test_a_pinned_head_that_is_no_row_is_a_problem(ledger: Path, wrong: str) -> None:
    assert [problem.code for problem in verify_ledger(ledger, head=wrong).problems] == ["head_not_in_chain"]


def test_a_replaced_middle_breaks_the_chain_where_it_ends(ledger: Path) -> None:
    raw = sqlite3.connect(ledger)
    at, kind, subject, body, prev = raw.execute(
        "SELECT at, kind, subject, body, prev_hash FROM entries WHERE seq = 8"
    ).fetchone()
    raw.close()
    digest = row_hash(8, at, kind, subject, "mallory", body.encode(), prev)
    tamper(ledger, f"UPDATE entries SET actor = 'mallory', hash = '{digest}' WHERE seq = 8")
    report = verify_ledger(ledger)
    assert (report.first_bad_seq, report.problems[0].code) == (9, "chain_broken")
    assert "row 9 does not follow row 8" in str(report.problem)


@pytest.mark.parametrize("trigger", [trigger.name for trigger in TRIGGERS])
def test_a_dropped_trigger_is_named(ledger: Path, trigger: str) -> None:
    raw = sqlite3.connect(ledger)
    raw.execute(f"DROP TRIGGER {trigger}")
    raw.close()
    report = verify_ledger(ledger)
    assert (report.ok, report.first_bad_seq, report.rows) == (False, None, ROWS)
    assert f"trigger {trigger} is missing" in str(report.problem)


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (
            [
                "DROP TRIGGER entries_no_update",
                "CREATE TRIGGER entries_no_update BEFORE UPDATE ON entries BEGIN SELECT 1; END",
            ],
            "trigger entries_no_update is not the one bitgate made",
        ),
        (
            ["CREATE TRIGGER helpful AFTER INSERT ON entries BEGIN SELECT 1; END"],
            "trigger helpful is not bitgate's",
        ),
        (
            ["DROP VIEW evidence", "CREATE VIEW evidence AS SELECT 'pass' AS verdict"],
            "view evidence is not the one bitgate made",
        ),
        (["DROP INDEX evidence_by_verdict"], "index evidence_by_verdict is missing"),
    ],
)
def test_a_changed_guard_or_view_is_named(ledger: Path, statements: list[str], words: str) -> None:
    raw = sqlite3.connect(ledger, isolation_level=None)
    for statement in statements:
        raw.execute(statement)
    raw.close()
    report = verify_ledger(ledger)
    assert not report.ok
    assert words in str(report.problem)


def test_an_edited_row_comes_before_the_guards_that_were_dropped_for_it(ledger: Path) -> None:
    tamper(ledger, "UPDATE entries SET actor = 'mallory' WHERE seq = 12", restore=False)
    report = verify_ledger(ledger)
    assert report.first_bad_seq == 12
    assert {problem.code for problem in report.problems} == {"row_edited", "guard_changed"}


def test_evidence_hidden_from_an_index_is_found(path: Path, store: Store, finished: Callable[..., Evidence]) -> None:
    """The text of the index looks right; what it holds is not what the rows say."""
    finished(verdict="fail", check="batch")
    store.close()
    raw = sqlite3.connect(path, isolation_level=None)
    (sql,) = raw.execute("SELECT sql FROM sqlite_schema WHERE name = 'evidence_by_verdict'").fetchone()
    raw.execute("DROP INDEX evidence_by_verdict")
    raw.execute(f"{sql} WHERE verdict = 'pass'")
    raw.execute("PRAGMA writable_schema = ON")
    raw.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'evidence_by_verdict'", (sql,))
    raw.close()
    with Store.open(path) as blind:
        assert blind.list_evidence(verdict="fail") == []
    report = verify_ledger(path)
    assert not report.ok
    assert "evidence_by_verdict" in str(report.problem)


def test_a_swapped_and_a_missing_artifact_are_named(
    path: Path, store: Store, finished: Callable[..., Evidence]
) -> None:
    refs = [store.artifacts.put_bytes(data, f"{data.decode()}.csv") for data in (b"one", b"two", b"three")]
    for ref in refs:
        finished(artifacts=(ref, refs[0]))
    assert verify_ledger(path).artifacts == 3
    swapped, missing = (store.artifacts.path(ref.digest) for ref in refs[1:])
    swapped.chmod(0o644)
    swapped.write_bytes(b"owt")
    missing.unlink()
    report = verify_ledger(path)
    assert [(problem.seq, problem.code) for problem in report.problems] == [
        (5, "artifact_changed"),
        (8, "artifact_missing"),
    ]
    assert "'two.csv'" in str(report.problem)
    assert verify_ledger(path, artifacts=False).ok


def test_evidence_forged_for_a_finished_run_is_named(
    path: Path, store: Store, finished: Callable[..., Evidence]
) -> None:
    old = finished(verdict="fail")
    store.close()
    raw = sqlite3.connect(path)
    at, body, actor = raw.execute("SELECT at, body, actor FROM entries WHERE kind = 'evidence'").fetchone()
    (previous,) = raw.execute("SELECT hash FROM entries WHERE seq = 3").fetchone()
    raw.close()
    forged = body.replace('"fail"', '"pass"').replace(old.id, "ev_forged")
    digest = row_hash(4, at, "evidence", "ev_forged", actor, forged.encode(), previous)
    quoted = forged.replace("'", "''")
    row = f"(4, '{at}', 'evidence', 'ev_forged', '{actor}', '{quoted}', '{previous}', '{digest}')"
    tamper(path, f"INSERT INTO entries VALUES {row}")
    report = verify_ledger(path)
    assert (report.first_bad_seq, report.problems[0].code) == (4, "run_rule")
    assert "not running then" in str(report.problem)


def test_a_run_hidden_from_the_running_ones_is_found(path: Path, store: Store) -> None:
    run = store.start_run("run_compare", {}, "agent")
    assert verify_ledger(path).ok
    raw = sqlite3.connect(path, isolation_level=None)
    raw.execute("DELETE FROM running")
    raw.close()
    report = verify_ledger(path)
    assert report.problems[0].code == "derived_changed"
    assert run.id in str(report.problem)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE evidence_keys SET verdict = 'pass'",
        'UPDATE evidence_keys SET "check" = NULL',
        "UPDATE evidence_keys SET rollout = 'x'",
        "DELETE FROM evidence_keys",
        "INSERT INTO evidence_keys (seq, tool, verdict) VALUES (1, 'run_compare', 'pass')",
    ],
)
def test_evidence_filed_wrongly_is_found(
    path: Path, store: Store, finished: Callable[..., Evidence], change: str
) -> None:
    finished(verdict="fail", check="batch")
    store.close()
    tamper(path, change)
    report = verify_ledger(path)
    assert {problem.code for problem in report.problems} == {"derived_changed"}
    assert "the table evidence_keys is wrong about row" in str(report.problem)


def test_odd_names_are_filed_as_they_are(path: Path, store: Store, finished: Callable[..., Evidence]) -> None:
    odd = 'a"b\\c/\n\t\b\f\x01\x1f\x7f\u2028é漢\U0001f600'
    made = finished(tool=odd, check=odd)
    assert store.list_evidence(tool=odd, check=odd) == [made]
    assert verify_ledger(path).ok


def test_verifying_changes_nothing_and_does_not_stop_writers(path: Path, store: Store) -> None:
    store.append("gate", "C3", {}, "agent")
    (store.artifacts.root / "incoming").mkdir(parents=True)
    (store.artifacts.root / "incoming" / "leftover").touch()
    with store.transaction():
        store.append("gate", "C4", {}, "agent")
        report = verify_ledger(path)
    assert (report.ok, report.rows) == (True, 1)
    assert (store.artifacts.root / "incoming" / "leftover").exists()
