"""From a checkpoint's config.json to Megatron-Core's arguments: complete, or refused by the key's name.

Pure functions of the configuration. A key that is neither mapped here nor known to leave the maths alone is refused:
a setting that is silently dropped gives another model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from ..engine import EngineError

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Family:
    """What one architecture adds to the common decoder, and the keys of its configuration beside the common ones."""

    qk_norm: bool
    experts: bool
    keys: frozenset[str]


@dataclass(frozen=True)
class Architecture:
    """`transformer`: arguments of TransformerConfig; `gpt`: of GPTModel. Sizes are the checkpoint's own."""

    layers: int
    heads: int
    groups: int
    head_dim: int
    vocabulary: int
    tied: bool
    experts: int
    transformer: Mapping[str, Any]
    gpt: Mapping[str, Any]


_WINDOW: Final = frozenset({"sliding_window", "use_sliding_window", "max_window_layers", "layer_types"})
_EXPERTS: Final = frozenset(
    {
        "num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob",
        "decoder_sparse_step", "mlp_only_layers", "output_router_logits", "router_aux_loss_coef",
    }
)  # fmt: skip
FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(
    {
        "LlamaForCausalLM": Family(qk_norm=False, experts=False, keys=frozenset({"mlp_bias", "pretraining_tp"})),
        "Qwen3ForCausalLM": Family(qk_norm=True, experts=False, keys=_WINDOW),
        "Qwen3MoeForCausalLM": Family(qk_norm=True, experts=True, keys=_WINDOW | _EXPERTS),
    }
)
COMMON: Final = frozenset(
    {
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "head_dim", "vocab_size", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings", "hidden_act",
        "attention_bias", "attention_dropout", "rope_theta", "rope_scaling", "rope_parameters",
    }
)  # fmt: skip
INERT: Final = frozenset(
    {
        "architectures", "model_type", "_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache",
        "bos_token_id", "eos_token_id", "pad_token_id", "initializer_range", "return_dict",
        "output_attentions", "output_hidden_states", "_attn_implementation_autoset", "chunk_size_feed_forward",
    }
)  # fmt: skip
"""How the file was written, how tokens are sampled, how weights were first drawn: nothing of a forward."""
_SCALING: Final = frozenset(
    {
        "rope_theta", "rope_type", "type", "factor", "low_freq_factor", "high_freq_factor",
        "original_max_position_embeddings", "partial_rotary_factor",
    }
)  # fmt: skip
LLAMA3: Final = MappingProxyType(
    {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
)
"""What RotaryEmbedding._apply_scaling has as defaults, and GPTModel cannot be told otherwise."""


def architecture_of(config: Config, *, vocabulary_multiple: int = 1) -> Architecture:
    """Megatron-Core's arguments for a transformers configuration.

    vocabulary_multiple: the embedding gets rows of zeros until its size is a multiple (Megatron-LM pads to 128).

    Raises: EngineError `unsupported_model` naming the key, what it says, and what Megatron-Core can be told.
    """
    family = _family_of(config)
    _refuse_unknown(config, family)
    _refuse_other_maths(config)
    heads, hidden = _count(config, "num_attention_heads"), _count(config, "hidden_size")
    groups = _count(config, "num_key_value_heads", heads if not family.qk_norm else None)
    head_dim = _count(config, "head_dim", None if family.qk_norm or hidden % heads else hidden // heads)
    if heads % groups:
        raise _refused("num_key_value_heads", groups, f"a divisor of num_attention_heads = {heads}")
    vocabulary = _count(config, "vocab_size")
    tied = bool(config.get("tie_word_embeddings", False))
    bias = _bias(config, family)
    transformer: dict[str, Any] = {
        "num_layers": _count(config, "num_hidden_layers"),
        "hidden_size": hidden,
        "ffn_hidden_size": _count(config, "intermediate_size"),
        "num_attention_heads": heads,
        "num_query_groups": groups,
        "kv_channels": head_dim,
        "normalization": "RMSNorm",
        "layernorm_epsilon": float(_given(config, "rms_norm_eps")),
        "qk_layernorm": family.qk_norm,
        "gated_linear_unit": True,
        "add_bias_linear": bias,
        "add_qkv_bias": bias,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }
    experts = _experts(config, transformer["num_layers"]) if family.experts else {}
    gpt = {
        "vocab_size": -(-vocabulary // vocabulary_multiple) * vocabulary_multiple,
        "max_sequence_length": _count(config, "max_position_embeddings"),
        "position_embedding_type": "rope",
        "share_embeddings_and_output_weights": tied,
        "parallel_output": False,
        **_rope(config),
    }
    return Architecture(
        transformer["num_layers"], heads, groups, head_dim, vocabulary, tied, experts.get("num_moe_experts", 0),
        transformer | experts, gpt,
    )  # fmt: skip


def _family_of(config: Config) -> Family:
    named = (config.get("architectures") or ["none"])[0]
    if named not in FAMILIES:
        raise EngineError(
            "unsupported_model",
            f"config.json architectures: got {named!r}; the megatron engine maps the weights of {', '.join(FAMILIES)}",
        )
    return FAMILIES[named]


def _refuse_unknown(config: Config, family: Family) -> None:
    for key, value in config.items():
        if key not in COMMON | family.keys | INERT and value is not None:
            raise EngineError(
                "unsupported_model",
                f"config.json {key}: got {value!r}, which the megatron engine does not map to Megatron-Core; whether "
                "it changes the maths is not known, so the model is not run without it",
            )


def _refuse_other_maths(config: Config) -> None:
    """Keys that are understood, with a value that Megatron-Core's GPTModel has no argument for."""
    allowed: dict[str, tuple[Any, ...]] = {
        "hidden_act": ("silu",),
        "attention_dropout": (0.0, None),
        "use_sliding_window": (False, None),
        "pretraining_tp": (1, None),
        "output_router_logits": (False, None),
    }
    for key, values in allowed.items():
        if config.get(key, values[0]) not in values:
            raise _refused(key, config[key], repr(values[0]))
    foreign = [kind for kind in config.get("layer_types") or () if kind != "full_attention"]
    if foreign:
        raise _refused("layer_types", foreign[0], "'full_attention' in every layer")


def _bias(config: Config, family: Family) -> bool:
    """transformers has one switch for q, k, v and o, one for the MLP; Megatron one for q, k, v, one for all linears."""
    attention, mlp = bool(config.get("attention_bias", False)), bool(config.get("mlp_bias", False))
    if attention != mlp:
        key = "attention_bias" if attention else "mlp_bias"
        other = f"with mlp_bias = {mlp}" if "mlp_bias" in family.keys else "in this architecture"
        raise _refused(key, True, f"false {other} (add_bias_linear is for attention and MLP together)")
    return attention


def _experts(config: Config, layers: int) -> dict[str, Any]:
    """Megatron-Core normalises the chosen experts' weights exactly when the softmax comes after the choice."""
    named = {key: config[key] for key in ("num_experts", "num_local_experts") if config.get(key) is not None}
    if len(set(named.values())) != 1:
        raise _refused("num_experts", named or None, "one number of experts")
    experts, chosen = next(iter(named.values())), _count(config, "num_experts_per_tok")
    step, dense = config.get("decoder_sparse_step", 1), set(config.get("mlp_only_layers") or ())
    sparse = [int(n not in dense and experts > 0 and (n + 1) % step == 0) for n in range(layers)]
    normalised = bool(config.get("norm_topk_prob", False))
    if not any(sparse):
        return {}
    if normalised and chosen == 1:
        raise _refused("norm_topk_prob", True, "false with one expert a token, which Megatron-Core cannot normalise")
    return {
        "num_moe_experts": experts,
        "moe_router_topk": chosen,
        "moe_ffn_hidden_size": _count(config, "moe_intermediate_size"),
        "moe_layer_freq": sparse,
        "moe_router_score_function": "softmax",
        "moe_router_pre_softmax": not normalised,
        # The auxiliary loss of pretraining is no part of a logprob: transformers adds none to these logits either.
        "moe_router_load_balancing_type": "none",
    }


def _rope(config: Config) -> dict[str, Any]:
    given = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    where = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    for key, value in given.items():
        if key not in _SCALING and value is not None:
            raise _refused(f"{where}.{key}", value, f"one of {', '.join(sorted(_SCALING))}")
    if given.get("partial_rotary_factor", 1.0) != 1.0:
        raise _refused(f"{where}.partial_rotary_factor", given["partial_rotary_factor"], "1.0")
    # 10000 is what these architectures have meant by a missing key since they exist.
    base = given.get("rope_theta") or config.get("rope_theta") or 10000.0
    kind = given.get("rope_type", given.get("type", "default"))
    match kind:
        case "default":
            scaling: dict[str, Any] = {}
        case "linear":
            scaling = {"seq_len_interpolation_factor": float(_given(given, "factor", where))}
        case "llama3":
            scaling = {"rope_scaling": True, "rope_scaling_factor": float(_given(given, "factor", where))}
            for key, fixed in LLAMA3.items():
                if _given(given, key, where) != fixed:
                    raise _refused(f"{where}.{key}", given[key], f"{fixed} (GPTModel has no argument for it)")
        case _:
            raise _refused(f"{where}.rope_type", kind, "default, linear, llama3")
    return {"rotary_base": base, "rotary_percent": 1.0, **scaling}


def _given(config: Config, key: str, where: str = "") -> Any:
    if config.get(key) is None:
        raise _refused(f"{where}.{key}" if where else key, None, "a value; its default is not guessed")
    return config[key]


def _count(config: Config, key: str, default: int | None = None) -> int:
    value = config.get(key) if config.get(key) is not None else default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _refused(key, value, "a whole number from 1")
    return value


def _refused(key: str, value: Any, allowed: str) -> EngineError:
    return EngineError(
        "unsupported_model",
        f"config.json {key}: got {value!r}; allowed for the megatron engine is {allowed}; use another engine for it",
    )
