"""Every key of a configuration is mapped to Megatron-Core, or known to be no part of a forward, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from bitgate.tools.engines.worker.engine import EngineError
from bitgate.tools.engines.worker.engines.megatron_config import Architecture, architecture_of

QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "dtype": "bfloat16",
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 96,
    "layer_types": ["full_attention", "full_attention"],
    "max_position_embeddings": 2048,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 300,
}
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 2048,
    "mlp_bias": False,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-5,
    "vocab_size": 300,
}
MOE: dict[str, Any] = {
    **QWEN3,
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def mapped(base: dict[str, Any], **changes: Any) -> Architecture:
    return architecture_of({**base, **changes})


def test_a_dense_model_is_mapped_whole() -> None:
    made = architecture_of(QWEN3, vocabulary_multiple=128)
    assert made.transformer == {
        "num_layers": 2,
        "hidden_size": 64,
        "ffn_hidden_size": 96,
        "num_attention_heads": 4,
        "num_query_groups": 2,
        "kv_channels": 32,
        "normalization": "RMSNorm",
        "layernorm_epsilon": 1e-6,
        "qk_layernorm": True,
        "gated_linear_unit": True,
        "add_bias_linear": False,
        "add_qkv_bias": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }
    assert made.gpt == {
        "vocab_size": 384,
        "max_sequence_length": 2048,
        "position_embedding_type": "rope",
        "share_embeddings_and_output_weights": True,
        "parallel_output": False,
        "rotary_base": 1000000.0,
        "rotary_percent": 1.0,
    }
    assert (made.vocabulary, made.tied, made.experts) == (300, True, 0)


def test_what_an_old_llama_leaves_out_is_what_it_always_meant() -> None:
    made = architecture_of(LLAMA)
    named = ("num_query_groups", "kv_channels", "qk_layernorm")
    assert [made.transformer[n] for n in named] == [4, 16, False]
    assert (made.gpt["rotary_base"], made.gpt["share_embeddings_and_output_weights"]) == (10000.0, False)


@pytest.mark.parametrize("normalised", [True, False])
def test_the_softmax_comes_before_the_choice_exactly_when_weights_are_not_normalised(normalised: bool) -> None:
    made = mapped(MOE, norm_topk_prob=normalised).transformer
    assert made["moe_router_pre_softmax"] is not normalised
    assert (made["num_moe_experts"], made["moe_router_topk"], made["moe_ffn_hidden_size"]) == (8, 2, 32)
    assert made["moe_router_load_balancing_type"] == "none"


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        ({"decoder_sparse_step": 2}, [0, 1, 0, 1]),
        ({"mlp_only_layers": [0, 2]}, [0, 1, 0, 1]),
        ({"mlp_only_layers": [1], "decoder_sparse_step": 2}, [0, 0, 0, 1]),
    ],
)
def test_sparse_layers_are_where_transformers_has_them(changes: dict[str, Any], pattern: list[int]) -> None:
    given = {**changes, "num_hidden_layers": 4, "layer_types": None}
    assert mapped(MOE, **given).transformer["moe_layer_freq"] == pattern


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"rope_parameters": LLAMA3}, (500000.0, True, 32.0, None)),
        ({"rope_theta": 6e5, "rope_scaling": {**LLAMA3, "rope_theta": None}}, (6e5, True, 32.0, None)),
        ({"rope_theta": 2e4, "rope_scaling": {"type": "linear", "factor": 4.0}}, (2e4, None, None, 4.0)),
        ({"rope_theta": 2e4, "rope_scaling": None}, (2e4, None, None, None)),
    ],
)  # fmt: skip
def test_rotations_are_mapped_from_the_old_and_the_new_keys(given: dict[str, Any], expected: tuple[Any, ...]) -> None:
    gpt = mapped(LLAMA, **given).gpt
    named = ("rotary_base", "rope_scaling", "rope_scaling_factor", "seq_len_interpolation_factor")
    assert tuple(gpt.get(name) for name in named) == expected


def test_biases_of_attention_and_mlp_together_are_megatrons_bias_of_all_linears() -> None:
    made = mapped(LLAMA, attention_bias=True, mlp_bias=True).transformer
    assert (made["add_bias_linear"], made["add_qkv_bias"]) == (True, True)


@pytest.mark.parametrize(
    ("base", "changes", "named"),
    [
        (QWEN3, {"architectures": ["Gemma3ForCausalLM"]}, "architectures: got 'Gemma3ForCausalLM'"),
        (QWEN3, {"architectures": []}, "architectures: got 'none'"),
        (QWEN3, {"hidden_act": "gelu"}, "hidden_act"),
        (QWEN3, {"attention_dropout": 0.1}, "attention_dropout"),
        (QWEN3, {"use_sliding_window": True, "sliding_window": 64}, "use_sliding_window"),
        (QWEN3, {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types: got 'sliding_attention'"),
        (QWEN3, {"attention_bias": True}, "attention_bias"),
        (LLAMA, {"attention_bias": True}, "attention_bias: got True; allowed for the megatron engine is false with"),
        (LLAMA, {"mlp_bias": True}, "mlp_bias"),
        (LLAMA, {"pretraining_tp": 2}, "pretraining_tp"),
        (LLAMA, {"sliding_window": 64}, "sliding_window: got 64, which the megatron engine does not map"),
        (QWEN3, {"quantization_config": {"bits": 4}}, "quantization_config"),
        (QWEN3, {"logit_softcap": 30.0}, "logit_softcap"),
        (LLAMA, {"auto_map": {"AutoModelForCausalLM": "own.Model"}}, "auto_map"),
        (QWEN3, {"num_experts": 8}, "num_experts"),
        (QWEN3, {"head_dim": None}, "head_dim: got None"),
        (QWEN3, {"num_key_value_heads": None}, "num_key_value_heads"),
        (QWEN3, {"num_key_value_heads": 3}, "num_key_value_heads: got 3; allowed.*a divisor"),
        (QWEN3, {"rms_norm_eps": None}, "rms_norm_eps: got None.*not guessed"),
        (QWEN3, {"vocab_size": 0}, "vocab_size"),
        (LLAMA, {"hidden_size": 66}, "head_dim"),
        (LLAMA, {"rope_parameters": {**LLAMA3, "rope_type": "yarn"}}, r"rope_parameters.rope_type: got 'yarn'"),
        (LLAMA, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling.rope_type: got 'dynamic'"),
        (LLAMA, {"rope_parameters": {**LLAMA3, "high_freq_factor": 2.0}}, "rope_parameters.high_freq_factor"),
        (LLAMA, {"rope_parameters": {**LLAMA3, "low_freq_factor": 2.0}}, "rope_parameters.low_freq_factor"),
        (LLAMA, {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 4096}}, "original_max_position"),
        (LLAMA, {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5}}, "rope_parameters.factor"),
        (LLAMA, {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        (LLAMA, {"rope_parameters": {"rope_theta": 1e4, "attention_factor": 2.0}}, "rope_parameters.attention_factor"),
        (MOE, {"num_experts": 4}, "num_experts: got .*one number of experts"),
        (MOE, {"num_local_experts": None}, "num_experts"),
        (MOE, {"num_experts_per_tok": None}, "num_experts_per_tok"),
        (MOE, {"num_experts_per_tok": 1}, "norm_topk_prob"),
        (MOE, {"shared_expert_intermediate_size": 32}, "shared_expert_intermediate_size"),
        (MOE, {"output_router_logits": True}, "output_router_logits"),
    ],
)  # fmt: skip
def test_a_key_that_megatron_cannot_be_told_is_refused_by_name(
    base: dict[str, Any], changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(EngineError, match=named) as refused:
        mapped(base, **changes)
    assert refused.value.code == "unsupported_model"


@pytest.mark.parametrize("key", sorted(set(MOE) | set(LLAMA)))
def test_no_key_that_has_a_meaning_is_ignored_silently(key: str) -> None:
    """A key is inert, or changing it to something absurd is refused or changes what Megatron-Core is told."""
    inert = {
        "bos_token_id", "dtype", "initializer_range", "max_window_layers", "model_type", "router_aux_loss_coef",
        # Without use_sliding_window, which is refused, the window is not read.
        "sliding_window",
    }  # fmt: skip
    base = {**MOE, "num_hidden_layers": 2} if key in MOE else LLAMA
    absurd = {"architectures": ["Other"], "layer_types": ["sliding_attention"] * 2, "mlp_only_layers": [1]}
    changed = {**base, key: absurd.get(key, not base[key] if isinstance(base[key], bool) else 7)}
    if key == "rope_parameters":
        changed[key] = {"rope_theta": 7.0}
    try:
        same = architecture_of(changed) == architecture_of(base)
    except EngineError:
        same = False
    assert same is (key in inert)
