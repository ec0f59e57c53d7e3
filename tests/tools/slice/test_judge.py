"""What a slice's proofs amount to: each report that is not clean is a reason of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bitgate.tools.reasons import verdict_of
from bitgate.tools.slice.census import Census, take_census
from bitgate.tools.slice.cut import CopiedTensor, CutResult
from bitgate.tools.slice.family import read_model
from bitgate.tools.slice.finding import not_loaded
from bitgate.tools.slice.plan import Plan, make_plan
from bitgate.tools.slice.proof import judge, wanted_proofs

CLEAN: dict[str, Any] = {"mode": "loaded", "why": "", "missing": [], "unexpected": [], "mismatched": [], "errors": []}
EQUAL: dict[str, Any] = {
    "equal": True,
    "finite": True,
    "self_test": {"planted": "one ulp", "seen": True},
    "layers": [{"new": 0, "old": 3, "equal": True, "different": 0}],
}
GOOD = {"transformers": CLEAN, "vllm": CLEAN, "window": EQUAL}


def subject(names: dict[str, str] | None = None) -> tuple[Census, Plan]:
    model = read_model({"model_type": "llama", "num_hidden_layers": 4})
    census = take_census(model, names or {})
    return census, make_plan(model, census)


def cut_result(copy_digest: str = "aa") -> CutResult:
    tensor = CopiedTensor("lm_head.weight", "lm_head.weight", "model.safetensors", 4, True, "aa", copy_digest)
    return CutResult(Path("/out"), (tensor,), 4, (), True)


def judged(reports: dict[str, Any], result: CutResult | None = None, skipped: str = "") -> list[str]:
    return [item.code for item in judge(*subject(), result or cut_result(), reports, skipped)]


def test_clean_reports_pass() -> None:
    assert judged(GOOD) == []


def test_a_different_byte_fails() -> None:
    reasons = judge(*subject(), cut_result("bb"), GOOD, "")
    assert [item.code for item in reasons] == ["slice_bytes_differ"] and verdict_of(reasons) == "fail"


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
@pytest.mark.parametrize("key", ["missing", "unexpected", "mismatched", "errors"])
def test_any_key_that_does_not_fit_fails(engine: str, key: str) -> None:
    assert judged({**GOOD, engine: {**CLEAN, key: ["model.x"]}}) == ["slice_load_differs"]


def test_an_engine_that_does_not_know_the_model_is_enough_if_the_other_does() -> None:
    assert judged({**GOOD, "vllm": {"mode": "not run", "why": "unknown"}}) == []


def test_an_engine_that_died_while_loading_leaves_the_slice_unproved() -> None:
    assert judged({**GOOD, "vllm": {"mode": "failed", "why": "killed"}}) == ["slice_not_proved"]


def test_an_engine_that_did_not_load_the_slice_is_named_as_untested() -> None:
    reports = {"transformers": CLEAN, "vllm": {"mode": "not run", "why": "unknown"}}
    assert not_loaded(reports) == {"vllm": "unknown"}
    assert not_loaded({"transformers": CLEAN}) == {"vllm": "not asked for"}


def test_no_load_report_at_all_proves_nothing() -> None:
    silent = {"mode": "not run", "why": "unknown"}
    assert judged({**GOOD, "transformers": silent, "vllm": silent}) == ["slice_not_proved"]


def test_another_bit_in_a_layer_fails_and_names_it() -> None:
    wrong = {**EQUAL, "equal": False, "layers": [{"new": 1, "old": 4, "equal": False, "different": 7}]}
    (found,) = judge(*subject(), cut_result(), {**GOOD, "window": wrong}, "")
    assert (found.code, "layer 1 (layer 4 of the full model): 7" in found.detail) == ("slice_window_differs", True)


def test_a_comparison_that_does_not_see_its_planted_fault_counts_for_nothing() -> None:
    blind = {**EQUAL, "self_test": {"planted": "one ulp", "seen": False}}
    assert judged({**GOOD, "window": blind}) == ["self_test_failed"]


def test_equal_nans_prove_nothing() -> None:
    assert judged({**GOOD, "window": {**EQUAL, "finite": False}}) == ["slice_not_proved"]


def test_a_worker_that_died_leaves_the_slice_unproved() -> None:
    assert judged({**GOOD, "window": {"mode": "failed", "why": "out of memory"}}) == ["slice_not_proved"]


def test_a_window_that_no_cpu_can_compute_is_not_asked_for() -> None:
    census, _ = subject({"model.layers.0.mlp.up_proj.weight": "F8_E4M3"})
    assert wanted_proofs(("transformers", "window"), census) == (("transformers",), "a CPU has no kernel for fp8")
    assert judged({"transformers": CLEAN}, skipped="a CPU has no kernel for fp8") == []


def test_names_that_nobody_knows_keep_the_slice_from_passing() -> None:
    census, plan = subject({"model.layers.0.odd.weight": "BF16"})
    assert [item.code for item in judge(census, plan, cut_result(), GOOD, "")][0] == "slice_names_unknown"
