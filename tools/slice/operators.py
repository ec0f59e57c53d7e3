"""Operator classes: the one table of what a module computes, and the rules that read it from a module's name.

Rules see the path inside a layer (`self_attn.q_proj`) or the whole path outside one. A family adds its own before
these. A name that no rule knows is reported as unknown; it is never guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

Role = Literal["column", "row", "heads", "vocabulary", "expert", "replicated"]
"""How tensor or expert parallelism splits the weight: output rows, input columns, heads, vocabulary, whole experts."""

OPERATORS: Final[dict[str, str]] = {
    "embedding": "token embedding lookup",
    "position_embedding": "learned positions",
    "per_layer_embedding": "embedding that feeds every layer separately (PLE, n-gram memory)",
    "norm": "RMSNorm or LayerNorm",
    "dense_linear": "matrix product with an unshared weight",
    "attention": "softmax attention; the layer's kind says full, sliding, chunked, MLA or sparse",
    "indexer": "scores keys to choose what sparse attention reads",
    "kv_compressor": "pools keys and values before attention",
    "hyper_connection": "mHC: mixes several residual streams",
    "residual_scale": "learned scalar on a branch or layer",
    "router": "scores experts and picks the top k",
    "experts": "grouped expert products",
    "shared_experts": "expert that every token visits",
    "ssm": "Mamba state-space recurrence",
    "gated_delta": "gated delta rule (GDN, KDA) or linear-attention recurrence",
    "conv": "short causal convolution",
    "decay": "decay factors that depend on the layer's depth",
    "mtp": "multi-token prediction block",
    "head": "output projection to the vocabulary",
    "adapter": "low-rank adapter on a shared block",
    "vision": "vision or audio tower",
    "projector": "projection from another modality into the text stream",
    "kv_cache_scale": "scale of a quantised KV cache",
}

LEAVES: Final = frozenset(
    (
        *("weight", "bias", "weight_packed", "weight_shape", "weight_zero_point", "weight_g_idx", "weight_bits"),
        *("weight_scale_inv", "weight_scale", "weight_scale_2", "weight_global_scale", "weight_scale_max"),
        *("input_scale", "input_global_scale", "input_activation_scale", "activation_scale", "output_scale"),
        *("qweight", "qzeros", "scales", "g_idx", "scale", "blocks", "pre_quant_scale", "absmax", "quant_map"),
    )
)
"""Names of the tensors of one module: the weight itself and what its quantisation keeps beside it."""

CACHE_LEAVES: Final = frozenset(("k_scale", "v_scale", "q_scale", "prob_scale", "kv_scale"))
FUSED_LEAVES: Final = ("_blocks", "_scales", "_bias", "_scale_inv", "_scale", "_scale_2", "_input_scale", "_packed")
"""Suffixes of merged expert parameters such as gpt-oss's `experts.gate_up_proj_blocks`."""


@dataclass(frozen=True)
class NameRule:
    """`pattern` must match the whole module path."""

    pattern: str
    operator: str
    role: Role = "replicated"


def rule(pattern: str, operator: str, role: Role = "replicated") -> NameRule:
    return NameRule(pattern, operator, role)


_ATTN = r"(self_attn|attn|attention|linear_attn|mixer|self_attn\.\d+|shared_transformer\.self_attn)"
_MLP = r"(mlp|ffn|feed_forward|mlps\.\d+|mixer|block_sparse_moe|shared_transformer\.feed_forward)"
_SSM = r"(mamba|mixer|mamba_decoder\.mamba)"

LAYER_RULES: Final[tuple[NameRule, ...]] = (
    rule(r".*\.indexer\..*|.*\.indexer", "indexer"),
    rule(r".*compressor(\..*)?", "kv_compressor"),
    rule(r"(hc_|attn_hc|ffn_hc).*", "hyper_connection"),
    rule(rf"{_ATTN}\.(slope_rate|query_decay|key_decay|diagonal_decay)", "decay"),
    rule(r".*(norm|layernorm|norm_[12]|_layernorm\.\d+|layernorm\.\d+|_ln)(\.\d+)?", "norm"),
    rule(r"layer_scalar|.*residual_scale|.*skip_scale", "residual_scale"),
    rule(
        rf"{_MLP}\.(shared_experts?|shared_mlp)(\..*)?(gate_proj|up_proj|w1|w3|input_linear)",
        "shared_experts",
        "column",
    ),
    rule(rf"{_MLP}\.(shared_experts?|shared_mlp)(\..*)?(down_proj|w2|output_linear)", "shared_experts", "row"),
    rule(r"shared_mlp\.input_linear", "shared_experts", "column"),
    rule(r"shared_mlp\.output_linear", "shared_experts", "row"),
    rule(rf"{_MLP}\.shared_expert_gate", "shared_experts"),
    rule(rf"{_MLP}\.experts(\..*)?", "experts", "expert"),
    rule(r"block_sparse_moe\.(input_linear|output_linear)", "experts", "expert"),
    rule(rf"{_MLP}\.(gate|router)(\.(layer|classifier|e_score_correction_bias|tid2eid))?", "router"),
    rule(rf"{_MLP}\.(e_score_correction_bias|tid2eid)", "router"),
    rule(rf"{_ATTN}\.(q_proj|k_proj|v_proj|qkv_proj|q_b_proj|kv_b_proj|wq_b|wo_a|g_proj)", "dense_linear", "column"),
    rule(
        rf"{_ATTN}\.(in_proj_qkvz|in_proj_ba|in_proj_qkv|in_proj_[zba]|output_gate|[bfg]_proj|[fg]_b_proj)",
        "dense_linear",
        "column",
    ),
    rule(rf"{_ATTN}\.(o_proj|out_proj|wo_b|dense)", "dense_linear", "row"),
    rule(rf"{_ATTN}\.(q_a_proj|kv_a_proj_with_mqa|wq_a|wkv|fused_wqa_wkv|[fg]_a_proj)", "dense_linear"),
    rule(rf"{_ATTN}\.(sinks|attn_sink|attention_sink_bias)", "attention", "heads"),
    rule(r"(linear_attn|self_attn)\.(A_log|dt_bias)", "gated_delta", "heads"),
    rule(r"(linear_attn|self_attn)\.([qkv]_)?conv1d", "conv", "column"),
    rule(rf"{_SSM}\.(in_proj|x_proj|dt_proj|BCdt_proj)", "dense_linear", "column"),
    rule(rf"{_SSM}\.out_proj", "dense_linear", "row"),
    rule(rf"{_SSM}\.(A_log|D|dt_bias|A)", "ssm", "heads"),
    rule(rf"{_SSM}\.conv1d", "conv", "column"),
    rule(rf"{_MLP}\.(gate_proj|up_proj|gate_up_proj|w1|w3|fc1)", "dense_linear", "column"),
    rule(rf"{_MLP}\.(down_proj|w2|fc2)", "dense_linear", "row"),
)

MODEL_RULES: Final[tuple[NameRule, ...]] = (
    rule(
        r"(.*\.)?(vision|visual|vision_tower|vision_model|audio_tower|audio_model|sound_encoder|image_newline)(\..*)?",
        "vision",
    ),
    rule(r"(.*\.)?(multi_modal_projector|mm_projector|embed_vision|embed_audio|mlp1|aligner)(\..*)?", "projector"),
    rule(r"(.*\.)?(embed_tokens|embeddings|embed|word_embeddings|wte)", "embedding", "vocabulary"),
    rule(r"(.*\.)?(lm_head|head|output)", "head", "vocabulary"),
    rule(r"(.*\.)?hc_head(_fn|_base|_scale|\..*)?", "hyper_connection"),
    rule(r"(.*\.)?(norm|norm_f|final_layernorm|ln_f)", "norm"),
)


def split_name(name: str) -> tuple[str, str]:
    """(module path, leaf) of a tensor's name; the leaf of a bare parameter is `weight`."""
    head, _, tail = name.rpartition(".")
    if tail in LEAVES or tail in CACHE_LEAVES:
        return head, tail
    for suffix in FUSED_LEAVES:
        if tail.endswith(suffix) and tail.removesuffix(suffix).endswith("_proj"):
            return f"{head}.{tail.removesuffix(suffix)}", suffix[1:]
    return name, "weight"


@lru_cache(maxsize=4096)
def match(path: str, rules: tuple[NameRule, ...]) -> NameRule | None:
    """The first rule whose pattern is the whole of `path`."""
    return next((item for item in rules if re.fullmatch(item.pattern, path)), None)
