from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from bitgate.store import NotFound, Refused, Store, StoreError
from bitgate.store.records import Evidence, Finding, ModelRecord, Reason, RegisteredModel, SideRecord


def test_a_run_is_running_until_it_is_finished(store: Store, finding: Callable[..., Finding]) -> None:
    run = store.start_run("run_compare", {"check": "batch"}, "agent")
    assert (run.state, run.request, run.actor) == ("running", {"check": "batch"}, "agent")
    assert store.get_run(run.id) == run
    assert store.running_runs() == store.list_runs("running") == [run]

    evidence = store.finish_run(run.id, "finished", finding=finding())
    done = store.get_run(run.id)
    assert evidence is not None
    assert (done.state, done.evidence_id, done.started_at) == ("finished", evidence.id, run.started_at)
    assert store.running_runs() == []
    assert store.list_runs("finished") == store.list_runs() == [done]


def test_evidence_is_read_back_as_it_was_recorded(store: Store, finding: Callable[..., Finding]) -> None:
    plot = store.artifacts.put_bytes(b"png", "plot.png")
    given = finding(
        verdict="fail",
        reasons=(Reason(code="bits_differ", detail="row 7"),),
        figures={"rows": 10**18, "kl": 1e-300, "worst": [[1, 2.5, None]], "名": "漢"},
        check="batch",
        sides={"rollout": SideRecord(name="rollout", engine="vllm", digest="a" * 64)},
        models={"rollout": ModelRecord(name="full", architecture_digest="b" * 64, weights_digest="c" * 64)},
        artifacts=(plot,),
    )
    run = store.start_run("run_compare", {"check": "batch"}, "agent")
    evidence = store.finish_run(run.id, "finished", finding=given)
    assert evidence is not None
    assert store.get_evidence(evidence.id) == evidence
    assert Finding.model_validate({name: getattr(evidence, name) for name in Finding.model_fields}) == given
    assert (evidence.run_id, evidence.tool, evidence.started_at) == (run.id, "run_compare", run.started_at)


def test_evidence_and_the_end_of_its_run_are_one_transaction(store: Store, finding: Callable[..., Finding]) -> None:
    run = store.start_run("run_compare", {}, "agent")
    with pytest.raises(Refused, match=r"body\.figures\.kl"):
        store.finish_run(run.id, "finished", finding=finding(figures={"kl": float("nan")}))
    assert store.get_run(run.id).state == "running"
    store.finish_run(run.id, "finished", finding=finding())
    assert [entry.kind for entry in store.entries()] == ["run_started", "evidence", "run_finished"]


@pytest.mark.parametrize("state", ["failed", "timed_out", "cancelled", "lost"])
def test_a_run_without_a_verdict_leaves_no_evidence(store: Store, state: Any) -> None:
    run = store.start_run("run_compare", {}, "agent")
    assert store.finish_run(run.id, state, error="worker died", error_code="worker_died", actor="server") is None
    done = store.get_run(run.id)
    assert (done.state, done.error, done.error_code, done.evidence_id) == (state, "worker died", "worker_died", None)
    assert store.list_evidence() == []
    assert [entry.actor for entry in store.entries("run_finished")] == ["server"]


@pytest.mark.parametrize("again", ["finished", "lost"])
def test_a_run_ends_only_once(store: Store, finding: Callable[..., Finding], again: Any) -> None:
    run = store.start_run("run_compare", {}, "agent")
    store.finish_run(run.id, "cancelled")
    before = store.head()
    with pytest.raises(Refused, match="is cancelled since .*; it ends only once") as caught:
        store.finish_run(run.id, again, finding=finding() if again == "finished" else None)
    assert caught.value.code == "run_not_running"
    assert store.head() == before


@pytest.mark.parametrize(
    ("state", "with_finding", "error_code"),
    [
        ("running", False, None),
        ("finished", False, None),
        ("failed", True, None),
        ("finished", True, "x"),
        ("ok", False, None),
    ],
)
def test_state_finding_and_error_must_fit(
    store: Store, finding: Callable[..., Finding], state: Any, with_finding: bool, error_code: str | None
) -> None:
    run = store.start_run("run_compare", {}, "agent")
    with pytest.raises(Refused) as caught:
        store.finish_run(run.id, state, finding=finding() if with_finding else None, error_code=error_code)
    assert caught.value.code == "bad_state"
    assert store.get_run(run.id).state == "running"


def test_evidence_names_only_artifacts_that_are_stored(store: Store, finding: Callable[..., Finding]) -> None:
    plot = store.artifacts.put_bytes(b"png", "plot.png")
    run = store.start_run("run_compare", {}, "agent")
    for wrong, code in (
        (plot.model_copy(update={"digest": "0" * 64}), "artifact_missing"),
        (plot.model_copy(update={"size": 9}), "artifact_size"),
    ):
        with pytest.raises(StoreError) as caught:
            store.finish_run(run.id, "finished", finding=finding(artifacts=(wrong,)))
        assert caught.value.code == code
    assert store.get_run(run.id).state == "running"


def test_what_is_unknown_is_said_so(store: Store) -> None:
    for ask, code in (
        (lambda: store.get_run("run_x"), "unknown_run"),
        (lambda: store.finish_run("run_x", "lost"), "unknown_run"),
        (lambda: store.get_evidence("ev_x"), "unknown_evidence"),
        (lambda: store.list_evidence(before="ev_x"), "unknown_evidence"),
        (lambda: store.get_model("full"), "unknown_model"),
    ):
        with pytest.raises(NotFound) as caught:
            ask()
        assert caught.value.code == code


def test_evidence_is_filtered_by_tool_check_and_verdict(store: Store, finished: Callable[..., Evidence]) -> None:
    made = [
        finished(tool, check=check, verdict=verdict)
        for tool in ("run_compare", "bisect_layer")
        for check in ("batch", "phase", None)
        for verdict in ("pass", "fail")
    ]
    for tool in (None, "run_compare", "slice_model"):
        for check in (None, "batch", "layout"):
            for verdict in (None, "pass", "invalid"):
                expected = [
                    evidence
                    for evidence in reversed(made)
                    if tool in (None, evidence.tool)
                    and check in (None, evidence.check)
                    and verdict in (None, evidence.verdict)
                ]
                assert store.list_evidence(tool, check, verdict) == expected  # type: ignore[arg-type]


def test_listing_continues_before_the_last_one_seen(store: Store, finished: Callable[..., Evidence]) -> None:
    made = [finished().id for _ in range(5)]
    first = store.list_evidence(limit=2)
    second = store.list_evidence(limit=3, before=first[-1].id)
    assert [evidence.id for evidence in (*first, *second)] == made[::-1]


def test_limits_and_names_outside_the_allowed_ones_are_refused(store: Store) -> None:
    for ask in (
        lambda: store.list_runs(limit=0),
        lambda: store.list_evidence(limit=1001),
        lambda: store.list_runs("done"),  # type: ignore[arg-type]
        lambda: store.list_evidence(verdict="passed"),  # type: ignore[arg-type]
    ):
        with pytest.raises(Refused, match="allowed"):
            ask()


def test_runs_are_listed_newest_first(store: Store) -> None:
    runs = [store.start_run("run_compare", {"n": n}, "agent") for n in range(4)]
    for run in runs[:3]:
        store.finish_run(run.id, "lost")
    assert [run.id for run in store.list_runs(limit=3)] == [run.id for run in runs[:0:-1]]
    assert [run.id for run in store.list_runs("lost", limit=2)] == [runs[2].id, runs[1].id]


def test_ids_are_short_safe_and_sort_by_time(store: Store, finished: Callable[..., Evidence]) -> None:
    made = [finished() for _ in range(3)]
    assert all(re.fullmatch(r"ev_[0-9a-z]{20}", evidence.id) for evidence in made)
    assert all(re.fullmatch(r"run_[0-9a-z]{20}", evidence.run_id) for evidence in made)
    assert [evidence.id[:12] for evidence in made] == sorted(evidence.id[:12] for evidence in made)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", evidence.finished_at) for evidence in made)


def test_a_long_error_is_cut_and_points_to_the_log(store: Store) -> None:
    run = store.start_run("run_compare", {}, "agent")
    store.finish_run(run.id, "failed", error="x" * 10_000 + "\udce9")
    error = store.get_run(run.id).error
    assert error is not None
    assert len(error) < 4100
    assert error.endswith("the run's log has the rest)")


def test_a_model_registered_again_is_the_newer_one(store: Store) -> None:
    for version in (0, 1):
        model = RegisteredModel(
            name="tiny",
            architecture_digest="a" * 64,
            weights_digest="b" * 64,
            weight_version=version,
            path="models/tiny",
        )
        store.register_model(model, "agent")
    assert store.get_model("tiny") == model
    assert store.ledger.rows("SELECT name, weight_version FROM models") == [("tiny", 1)]
