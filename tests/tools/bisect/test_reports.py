"""Public bug reports of this kind and their neighbours, localised on the product's own path: where, and which class."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.engine

CASES = 70


@pytest.fixture(scope="module")
def answers(script: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    printed = script("reports.py", str(tmp_path_factory.mktemp("reports")))
    found = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return {entry["case"]: entry for entry in found}


def test_every_report_gets_the_operator_and_the_class_that_its_experiments_show(
    answers: dict[str, dict[str, Any]],
) -> None:
    assert len(answers) >= CASES
    wrong = [
        (case, found["class"], found.get("mechanism"), found.get("experiments"))
        for case, found in answers.items()
        if found["class"] != found["wanted"]["class"] or found["wanted"]["says"] not in json.dumps(found)
    ]
    assert wrong == []
    places = {case: found["point"] for case, found in answers.items() if found["class"] != "equal"}
    assert all(places[case] == answers[case]["wanted"]["point"] for case in places), places


def test_every_difference_is_left_as_a_script_that_shows_it(answers: dict[str, dict[str, Any]]) -> None:
    assert all(found["repro"]["reproduces"] for found in answers.values() if found["class"] != "equal")
    first = next(iter(answers.values()))
    assert first["repro"]["exit_codes"] == [1, 1, 1]


def test_the_product_around_the_norm_is_reported_equal(answers: dict[str, dict[str, Any]]) -> None:
    assert "layers.0.resid_pre" in answers["1 norm casts before the weight"]["equal"]


def test_experts_that_flip_after_a_gate_are_amplified_and_not_the_cause(answers: dict[str, dict[str, Any]]) -> None:
    found = answers["2 gate in bfloat16"]
    assert found["point"] == "layers.0.router_logits"
    assert any("topk_ids" in text for text in found["amplified"]), found["amplified"]


def test_every_answer_names_the_experiments_behind_it(answers: dict[str, dict[str, Any]]) -> None:
    assert all(len(found["experiments"]) >= 4 for found in answers.values() if found["class"] != "equal")


def test_a_repro_keeps_no_row_head_or_size_that_the_failure_does_not_need(answers: dict[str, dict[str, Any]]) -> None:
    rotated = answers["15 inv_freq in bfloat16"]["repro"]
    assert (rotated["rows"], rotated["cut"][1:]) == ([1, 1], ["4 -> 2, 64 -> 32", "2 -> 1, 32 -> 16"])
    assert answers["16 sections of mrope permuted"]["repro"]["cut"]
    norm = answers["1 another eps"]["repro"]
    assert norm["rows"] == [1, 1] and norm["cut"][-1] == "8 -> 4"


def test_attention_that_adds_its_keys_in_another_order_has_another_fingerprint(script: Callable[..., str]) -> None:
    made = json.loads(script("orders.py"))
    assert made["forwards"] == made["again"]
    assert made["forwards"]["order"] != made["backwards"]["order"]
    assert made["forwards"]["levels"] > 1
    # Masks show nothing of a sum of two: it has one order only.
    assert made["of two"] is None
