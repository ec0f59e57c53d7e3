"""Operators one by one, the whole gradient, edited weights, refusals and dispatch, in the engine's process."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.engine

OPERATORS = [
    "embedding",
    "rms_norm",
    "rms_norm_of_small_rows",
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


@pytest.fixture
def found(lab: dict[str, Any]) -> dict[str, Any]:
    return lab


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize(("dtype", "limit"), [("bfloat16", 0.05), ("float32", 1e-6)])
def test_an_operators_backward_is_that_of_its_formula(
    found: dict[str, Any], operator: str, dtype: str, limit: float
) -> None:
    case = found["vjps"][dtype][operator]
    assert case["wrong"] == []
    assert (case["verdict"], case["worst"] < case["bound"] < limit) == ("pass", True)


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_backward_that_is_one_percent_too_large_fails(found: dict[str, Any], operator: str) -> None:
    assert found["vjps"]["one_percent"][operator] == "fail"


@pytest.mark.parametrize(
    "fault",
    [
        "rope_missing_for_the_keys",
        "router_drops_one_expert",
        "router_plain_drops_one_expert",
        "experts_share_not_differentiated",
        "one_experts_gate_half",
        "attention_forgets_the_last_key",
        "embedding_rows_shifted",
        "norm_weight_from_one_row_less",
    ],
)
def test_a_subtle_fault_in_one_operators_backward_fails(found: dict[str, Any], fault: str) -> None:
    assert found["vjps"]["faults"][fault]["verdict"] == "fail"


@pytest.mark.parametrize("operator", ["rms_norm", "rms_norm_of_small_rows", "fused_add_rms_norm"])
def test_a_norm_differentiated_with_another_eps_fails(found: dict[str, Any], operator: str) -> None:
    assert found["vjps"]["other_eps"][operator]["verdict"] == "fail"


def test_every_row_of_the_table_was_checked(found: dict[str, Any]) -> None:
    assert set(found["rows"]) <= set(OPERATORS)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("dtype", "limit"), [("bfloat16", 0.35), ("float32", 2e-4)])
def test_the_models_gradient_is_the_float64_references(
    found: dict[str, Any], model: str, dtype: str, limit: float
) -> None:
    case = found["models"][model][dtype]
    assert case["wrong"] == []
    assert case["verdict"] == "pass"
    assert 0 < case["worst"] < case["bound"] < limit


def test_one_percent_in_one_operator_of_one_layer_fails_the_whole_model(found: dict[str, Any]) -> None:
    case = found["one_percent_in_one_place"]
    assert case["verdict"] == "fail"
    assert any(line.startswith("model.layers.2.self_attn.o_proj.weight: ") for line in case["wrong"])
    assert not any(line.startswith("model.layers.3.") for line in case["wrong"])


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


@pytest.mark.parametrize(
    "how",
    [
        "in_place",
        "through_data",
        "new_data",
        "foreach",
        "loaded",
        "replaced",
        "with_recompute",
        "with_float32_master",
        "replaced_with_recompute",
    ],
)
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
        ("too_long_in_a_step", "unsupported_sequence_length", "sequence 1: 257 tokens, at most 256"),
        ("foreign_parts", "operator_without_entry", "operator sliding_window_attention"),
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
    assert operator in seen["shown"]


def test_sides_configured_for_different_dispatch_are_told_apart_by_operator(found: dict[str, Any]) -> None:
    different = found["dispatch"]["different"]
    assert set(different) == {"attention", "linear"}
    (untiled,), (tiled,) = different["linear"]
    assert (untiled.endswith("[rows=all]"), tiled.endswith("[rows=16]")) == (True, True)
    (untiled,), (tiled,) = different["attention"]
    assert (",queries=all," in untiled, ",queries=all," in tiled) == (True, False)


def test_a_cache_in_other_blocks_is_told_apart(found: dict[str, Any]) -> None:
    ((operator, ((usual,), (other,))),) = found["dispatch"]["other_blocks"].items()
    assert (operator, ",block=128," in usual, ",block=32," in other) == ("attention", True, True)


def test_a_compiled_forward_has_a_name(found: dict[str, Any]) -> None:
    assert found["dispatch"]["compiled_forward"] == "dispatched.native_rope"


def test_a_new_operator_is_one_row(found: dict[str, Any]) -> None:
    seen = found["dispatch"]["new_row"]
    assert seen["equal"] is True
    assert seen["shown"]["silu_and_mul"][1] == ["somebody's own"]


def test_the_kernels_bits_pass_through_where_the_sum_form_changes_them(found: dict[str, Any]) -> None:
    assert found["bit_patterns"] == {"visible_keeps_bits": True, "sum_keeps_bits": False, "gradient": True}


def test_an_edit_anywhere_changes_the_fingerprint(found: dict[str, Any]) -> None:
    assert found["fingerprints"] == {"single_words": True, "moved_words": True, "layout_is_not_content": True}


def test_a_layer_that_is_packed_again_leaves_no_product_behind(found: dict[str, Any]) -> None:
    assert found["tiles"] == {"same_bits": True, "kept_while_used": True, "left_behind": 0}


def test_advantages_that_are_all_zero_are_refused(found: dict[str, Any]) -> None:
    assert "all are zero" in found["zero_advantages"]


def test_one_step_changes_every_parameter(found: dict[str, Any]) -> None:
    assert found["step"]["changed"] == found["step"]["parameters"] == 47
