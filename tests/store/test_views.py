from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest

from bitgate.store import Store
from bitgate.store.records import Evidence, ModelRecord, Reason, SideRecord
from bitgate.store.schema import GATE_SIDES, VIEWS


def test_views_show_the_current_state(store: Store, finished: Callable[..., Evidence]) -> None:
    plot = store.artifacts.put_bytes(b"png", "plot.png")
    model = ModelRecord(name="tiny", architecture_digest="a" * 64, weights_digest="b" * 64)
    evidence = finished(
        verdict="fail",
        check="batch",
        reasons=(Reason(code="bits_differ", detail="row 7"),),
        sides={"rollout": SideRecord(name="rollout", engine="vllm", digest="c" * 64)},
        models={"rollout": model},
        artifacts=(plot,),
    )
    running = store.start_run("bisect_layer", {"x": 1}, "agent")
    rows = store.ledger.rows
    assert rows('SELECT id, tool, "check", verdict, grade, run_id FROM evidence') == [
        (evidence.id, "run_compare", "batch", "fail", "observed", evidence.run_id)
    ]
    assert rows("SELECT id, tool, state, evidence_id FROM runs ORDER BY seq") == [
        (evidence.run_id, "run_compare", "finished", evidence.id),
        (running.id, "bisect_layer", "running", None),
    ]
    assert rows("SELECT evidence_id, side, engine, digest FROM evidence_sides") == [
        (evidence.id, "rollout", "vllm", "c" * 64)
    ]
    assert rows("SELECT evidence_id, model, weights_digest FROM evidence_models") == [(evidence.id, "tiny", "b" * 64)]
    assert rows("SELECT evidence_id, code, detail FROM evidence_reasons") == [(evidence.id, "bits_differ", "row 7")]
    assert rows("SELECT subject, name, digest, size FROM artifacts") == [(evidence.id, "plot.png", plot.digest, 3)]


def test_every_view_can_be_read_when_there_is_nothing(store: Store) -> None:
    assert all(store.ledger.rows(f"SELECT * FROM {view.name}") == [] for view in VIEWS)


def plan(store: Store, sql: str) -> str:
    return " | ".join(row[3] for row in store.ledger.rows(f"EXPLAIN QUERY PLAN {sql}"))


@pytest.mark.parametrize("names", [c for size in (1, 2, 3) for c in combinations(("tool", "check", "verdict"), size)])
@pytest.mark.parametrize("source", ["view", "table"])
def test_the_newest_evidence_of_any_filter_is_read_from_an_index_without_a_sort(
    store: Store, names: tuple[str, ...], source: str
) -> None:
    if source == "view":
        sql = "SELECT * FROM evidence WHERE " + " AND ".join(f"\"{name}\" = 'x'" for name in names)
    else:
        joined = "SELECT body FROM evidence_keys AS k JOIN entries AS e USING (seq) WHERE "
        sql = joined + " AND ".join(f"k.\"{name}\" = 'x'" for name in names)
    used = plan(store, f"{sql} ORDER BY {'seq' if source == 'view' else 'k.seq'} DESC LIMIT 50")
    assert f"INDEX evidence_by_{'_'.join(names)} (" in used
    assert "TEMP B-TREE" not in used


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM runs WHERE id = 'x'",
        "SELECT * FROM evidence WHERE id = 'x'",
        "SELECT * FROM runs ORDER BY seq DESC LIMIT 50",
        "SELECT * FROM evidence ORDER BY seq DESC LIMIT 50",
        "SELECT * FROM entries WHERE kind = 'gate' AND seq > 5 ORDER BY seq",
        "SELECT * FROM entries WHERE subject = 'C3' AND kind = 'gate' AND seq > 5 ORDER BY seq",
    ],
)
def test_lookups_and_newest_lists_neither_scan_nor_sort(store: Store, sql: str) -> None:
    used = plan(store, sql)
    assert "SCAN" not in used.replace("SCAN k |", "")  # evidence_keys itself, backwards, until there are enough
    assert "TEMP B-TREE" not in used


@pytest.mark.parametrize("side", GATE_SIDES)
def test_the_results_about_one_side_as_it_is_are_read_from_an_index(store: Store, side: str) -> None:
    joined = "SELECT body FROM evidence_keys AS k JOIN entries AS e USING (seq)"
    wanted = f"k.{side} = 'x' AND k.tool = 'x' AND k.\"check\" = 'x' AND k.verdict = 'x'"
    used = plan(store, f"{joined} WHERE {wanted} ORDER BY k.seq DESC LIMIT 25")
    assert f"INDEX evidence_of_{side} ({side}=? AND tool=? AND check=? AND verdict=?)" in used
    assert "TEMP B-TREE" not in used


def test_finding_what_runs_does_not_read_every_run(path: Path, store: Store) -> None:
    used = plan(store, "SELECT * FROM runs WHERE id IN (SELECT run_id FROM running) ORDER BY +seq DESC LIMIT 50")
    assert "SEARCH s USING INDEX entries_by_subject (subject=? AND kind=?)" in used
