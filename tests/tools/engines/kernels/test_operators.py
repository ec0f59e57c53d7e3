"""Operators one by one, the whole gradient, edited weights, refusals and dispatch, in the engine's process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine

LAB = Path(__file__).parent / "lab"
OPERATORS = [
    "embedding",
    "rms_norm",
    "fused_add_rms_norm",
    "linear",
    "linear_bias",
    "rotary_embedding",
    "attention",
    "silu_and_mul",
    "router",
    "router_plain",
    "experts",
    "logprob",
]
MODELS = ["qwen3", "llama", "qwen3_moe"]


@pytest.fixture(scope="module")
def found(bench: Any, tiny: Callable[[str, int], Path]) -> dict[str, Any]:
    folder = bench.folder / "lab"
    folder.mkdir()
    for seed, family in enumerate(MODELS):
        (folder / family).symlink_to(tiny(family, seed))
    report: dict[str, Any] = bench.script(LAB / "vllm_lab.py", str(folder))
    return report


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operators_backward_is_that_of_its_formula(found: dict[str, Any], operator: str) -> None:
    case = found["vjps"][operator]
    assert case["wrong"] == []
    assert (case["verdict"], case["worst"] < case["bound"] < 0.05) == ("pass", True)


def test_every_row_of_the_table_was_checked(found: dict[str, Any]) -> None:
    assert set(found["rows"]) <= set(OPERATORS)


@pytest.mark.parametrize("model", MODELS)
def test_the_models_gradient_is_the_float64_references(found: dict[str, Any], model: str) -> None:
    case = found["models"][model]
    assert case["wrong"] == []
    assert case["verdict"] == "pass"
    assert 0 < case["worst"] < case["bound"]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("what", ["recompute_equal", "recompute_gradients_equal"])
def test_recomputed_activations_are_bit_equal(found: dict[str, Any], model: str, what: str) -> None:
    assert found["models"][model][what] is True


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("what", ["float32_master_equal", "float32_master_gradients", "float32_master_exports"])
def test_wider_master_weights_train_wide_and_compute_and_export_narrow(
    found: dict[str, Any], model: str, what: str
) -> None:
    assert found["models"][model][what] is True


@pytest.mark.parametrize("how", ["in_place", "through_data", "with_recompute"])
def test_weights_edited_before_the_backward_are_refused_by_name(found: dict[str, Any], how: str) -> None:
    seen = found["edits"][how]
    assert seen["code"] == "weights_changed_before_backward"
    assert found["edits"]["name"] in seen["message"]
    assert seen["message"].count(".weight") == 1


def test_an_operator_alone_checks_its_weight(found: dict[str, Any]) -> None:
    assert "linear(some.weight)" in found["edits"]["operator_alone"]["message"]


def test_weights_that_are_the_same_bytes_again_are_accepted(found: dict[str, Any]) -> None:
    assert found["edits"]["there_and_back"]["code"] == "none"


def test_a_forward_never_uses_a_stale_packed_weight(found: dict[str, Any]) -> None:
    assert found["stale_pack_noticed"] is True


@pytest.mark.parametrize(
    ("what", "code", "words"),
    [
        ("without_row", "operator_without_entry", "operator silu_and_mul: the table has no entry"),
        ("compiled", "operator_without_entry", "enforce_eager = true"),
        ("float32_head", "operator_without_entry", "operator logits"),
        ("processed_logprobs", "operator_without_entry", "operator logprob"),
        ("sliding_window", "operator_without_entry", "operator sliding_window_attention"),
        ("architecture", "operator_without_entry", "architecture Qwen2ForCausalLM"),
        ("dropout", "operator_without_entry", "operator attention_dropout"),
        ("kv_dtype", "unsupported_kv_cache_dtype", "got 'int8_per_token_head'; CPU_ATTN on this platform takes auto"),
        ("too_long", "unsupported_sequence_length", "sequence 1: 257 tokens, at most 256"),
        ("tensor_parallel", "operator_without_entry", "operator all_reduce"),
        (
            "quantised",
            "operator_without_entry",
            "operator linear: the table has no entry for the fp8 quantised product",
        ),
        ("token_outside", "request_refused", "sequence 1: has token 1024; allowed are ids 0 to 1023"),
        ("no_token", "request_refused", "sequence 1: has no token"),
        ("nothing_to_score", "request_refused", "step pre: no sequence is to be scored"),
        ("generate", "unsupported_step", "step gen: vllm_kernels has no generate; it runs prefill and train_forward"),
        ("unknown_option", "unsupported_option", "did you mean max_model_len?"),
        ("bad_flag", "unsupported_option", "option recompute: got 'yes'; allowed are true and false"),
        ("bad_master", "unsupported_option", "option master_dtype: got 'int8'"),
        ("missing_tensor", "checkpoint_mismatch", "missing model.layers.0.mlp.down_proj.weight"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(found: dict[str, Any], what: str, code: str, words: str) -> None:
    seen = found["refusals"][what]
    assert (seen["code"], words in seen["message"]) == (code, True), seen


@pytest.mark.parametrize(
    ("kernel", "operator"),
    [
        ("native_rope", "rotary_embedding"),
        ("cpp_norm", "rms_norm"),
        ("cpp_silu_and_mul", "silu_and_mul"),
        ("torch_attention", "attention"),
    ],
)
def test_another_kernel_of_the_same_name_gives_other_bits_and_is_shown(
    found: dict[str, Any], kernel: str, operator: str
) -> None:
    seen = found["dispatch"]["wrong_kernels"][kernel]
    assert seen["tokens"] > 0
    assert any(line.startswith(f"{operator}: ") for line in seen["shown"])


def test_sides_configured_for_different_dispatch_are_told_apart_by_operator(found: dict[str, Any]) -> None:
    (line,) = found["dispatch"]["different"]
    assert line.startswith("linear: rollout runs ")
    assert "[rows=all]; trainer runs " in line
    assert line.endswith("[rows=16]")


def test_a_new_operator_is_one_row(found: dict[str, Any]) -> None:
    seen = found["dispatch"]["new_row"]
    assert seen["equal"] is True
    assert seen["shown"][0].endswith("trainer runs somebody's own")


def test_the_kernels_bits_pass_through_where_the_sum_form_changes_them(found: dict[str, Any]) -> None:
    assert found["bit_patterns"] == {"visible_keeps_bits": True, "sum_keeps_bits": False, "gradient": True}


def test_an_edit_anywhere_changes_the_fingerprint(found: dict[str, Any]) -> None:
    assert found["fingerprints"] == {"single_words": True, "moved_words": True, "layout_is_not_content": True}


def test_advantages_that_are_all_zero_are_refused(found: dict[str, Any]) -> None:
    assert "all are zero" in found["zero_advantages"]


@pytest.mark.usefixtures("found")
def test_after_one_step_a_fresh_rollout_is_equal_again(bench: Any, prompts: Any, steps: Any, case: Any) -> None:
    """Version 1: the stepped checkpoint in a new engine, against a new trainer on the same files."""
    model, asked = bench.folder / "lab/stepped", prompts(7)
    whole = [list(range(len(asked)))]
    rollout = bench.run("vllm", model, steps.rollout(whole), asked, [[] for _ in asked], version=1)
    answers = rollout.sampled("sampled", len(asked))
    both = [step for step in steps.trainer(len(asked)) if step["name"] in ("packed", "recompute")]
    trainer = bench.run("vllm_kernels", model, both, asked, answers, version=1)
    assert trainer.bits("packed") == trainer.bits("recompute") == rollout.bits("sampled")
    assert set(trainer.rows("packed")["weight_version"].tolist()) == {1}
    digest = trainer.result["weights"]["digest"]
    assert digest == rollout.result["weights"]["digest"]
    assert digest != case("qwen3", 0).trainer.result["weights"]["digest"]


def test_one_step_changes_every_parameter(found: dict[str, Any]) -> None:
    assert found["step"]["changed"] == found["step"]["parameters"] == 47
