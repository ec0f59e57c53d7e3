from __future__ import annotations

import json
import math
from typing import Any

import pytest

from bitgate.server.answers import MAX_WIRE, RunAnswer, fitted, run_answer
from bitgate.server.sanitise import compact_json, wire_size
from bitgate.store.records import ArtifactRef, Evidence, Reason, Run, SideRecord

RUN = Run(id="run_0", tool="run_compare", state="finished", request={}, actor="me", started_at="t", evidence_id="ev_0")


def evidence(**changes: Any) -> Evidence:
    body: dict[str, Any] = {
        "id": "ev_0",
        "run_id": "run_0",
        "tool": "run_compare",
        "request": {},
        "started_at": "t",
        "finished_at": "t",
        "verdict": "fail",
        "summary": "3 of 512 tokens differ",
        "next": "bisect_layer(...)",
        "grade": "observed",
        "check": "batch",
        "reasons": (Reason(code="logprobs_differ", detail="3 rows"),),
        "figures": {"rows": 512, "different": 3},
    }
    return Evidence(**{**body, **changes})


def sent(**changes: Any) -> dict[str, Any]:
    return fitted(run_answer(RUN, evidence(**changes)), "the whole is bitgate://evidence/ev_0")


def test_an_answer_carries_verdict_reasons_figures_evidence_and_what_to_do() -> None:
    side = SideRecord(name="rollout", engine="vllm", digest="d" * 64)
    artifact = ArtifactRef(name="rows.csv", digest="a" * 64, size=3, media_type="text/csv")

    assert sent(sides={"rollout": side}, artifacts=(artifact,)) == {
        "summary": "3 of 512 tokens differ",
        "next": "bisect_layer(...)",
        "run_id": "run_0",
        "tool": "run_compare",
        "state": "finished",
        "check": "batch",
        "verdict": "fail",
        "grade": "observed",
        "reasons": [{"code": "logprobs_differ", "detail": "3 rows"}],
        "figures": {"rows": 512, "different": 3},
        "sides": {"rollout": "d" * 64},
        "evidence_id": "ev_0",
        "artifacts": [
            {"name": "rows.csv", "uri": f"bitgate://artifacts/{'a' * 64}", "size": 3, "media_type": "text/csv"}
        ],
    }


def test_figures_that_are_not_finite_are_null_with_a_flag() -> None:
    answer = sent(figures={"k3": math.nan, "worst": [{"diff": math.inf}]})

    assert answer["figures"] == {"k3": None, "worst": [{"diff": None}]}
    assert answer["non_finite"] == ["figures.k3", "figures.worst[0].diff"]


@pytest.mark.parametrize(
    "changes",
    [
        {"figures": {"worst": [{"sequence": i, "position": i, "diff": i / 3} for i in range(10_000)]}},
        {"figures": {f"figure_{i}": i for i in range(5_000)}},
        {"figures": {"text": "é" * 200_000}},
        {"figures": {"nested": [[[list(range(50))] * 50] * 50] * 5}},
        {"summary": "s" * 100_000, "next": "n" * 100_000},
        {"reasons": tuple(Reason(code=f"code_{i}", detail="d" * 600) for i in range(200))},
        {"sides": {"s" * 60 + str(i): SideRecord(name="x", engine="vllm", digest="d" * 64) for i in range(300)}},
        {"figures": {"quotes": '"\\' * 50_000}},
    ],
)
def test_an_answer_stays_under_ten_kilobytes_and_says_where_the_rest_is(changes: dict[str, Any]) -> None:
    answer = sent(**changes)

    assert wire_size(answer) <= MAX_WIRE < 10_000
    assert answer["cut"] == "the whole is bitgate://evidence/ev_0"
    assert (answer["verdict"], answer["evidence_id"], answer["run_id"]) == ("fail", "ev_0", "run_0")
    RunAnswer.model_validate(answer)


def test_a_small_answer_is_not_cut() -> None:
    assert "cut" not in sent()


def test_text_and_structure_hold_the_same_facts() -> None:
    answer = sent()

    assert json.loads(compact_json(answer)) == answer


def test_a_run_that_failed_names_its_error_and_log() -> None:
    run = RUN.model_copy(update={"state": "timed_out", "evidence_id": None, "error": "took long", "error_code": "t"})

    answer = run_answer(run, None)

    assert (answer.verdict, answer.error_code) == (None, "t")
    assert "timed out" in answer.summary and "took long" in answer.summary
    assert "bitgate://runs/run_0/log" in answer.next


def test_a_running_run_says_how_to_wait_and_to_cancel() -> None:
    answer = run_answer(RUN.model_copy(update={"state": "running", "evidence_id": None}), None)

    assert answer.next == "get_run(run_id='run_0', wait_s=50), or cancel_run(run_id='run_0')"


def test_every_answer_is_read_back_as_its_type() -> None:
    RunAnswer.model_validate(sent())
