"""Which architectures the modules build, and which parts of a configuration they have no operator for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from .errors import OperatorWithoutEntry


@dataclass(frozen=True)
class Family:
    """What one architecture adds to the common decoder."""

    qk_norm: bool
    experts: bool
    output_bias: bool


FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(
    {
        "LlamaForCausalLM": Family(qk_norm=False, experts=False, output_bias=True),
        "Qwen3ForCausalLM": Family(qk_norm=True, experts=False, output_bias=False),
        "Qwen3MoeForCausalLM": Family(qk_norm=True, experts=True, output_bias=False),
    }
)


def family_of(config: Any) -> Family:
    """The family of a transformers configuration.

    Raises: OperatorWithoutEntry for an architecture, or a part of it, that the modules cannot build.
    """
    architecture = (config.architectures or ["none"])[0]
    if architecture not in FAMILIES:
        raise OperatorWithoutEntry(
            _missing_operator(config), f"architecture {architecture}", f"add a family; there are {', '.join(FAMILIES)}"
        )
    _refuse(config)
    return FAMILIES[architecture]


def _missing_operator(config: Any) -> str:
    """The operator class that a foreign architecture most visibly needs."""
    hints = {"linear_attention": "gated_delta_net", "mamba": "mamba2", "sliding_attention": "sliding_window_attention"}
    types = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or []
    found = [hints[kind] for kind in types if kind in hints]
    if getattr(config, "kv_lora_rank", None):
        found.append("multi_head_latent_attention")
    return ", ".join(dict.fromkeys(found)) or f"{config.model_type} decoder layer"


def _refuse(config: Any) -> None:
    act = getattr(config, "hidden_act", "silu")
    if act != "silu":
        raise OperatorWithoutEntry(f"{act}_and_mul", f"activation {act}", "add a row for it to the table")
    window = getattr(config, "use_sliding_window", True) and getattr(config, "sliding_window", None)
    if window or "sliding_attention" in (getattr(config, "layer_types", None) or []):
        raise OperatorWithoutEntry("sliding_window_attention", f"window {window}", "add a row for it to the table")
    if getattr(config, "shared_expert_intermediate_size", 0):
        raise OperatorWithoutEntry("shared_expert", "a shared expert", "add a row for it to the table")
    if not getattr(config, "is_causal", True):
        raise OperatorWithoutEntry("encoder_attention", "bidirectional attention", "add a row for it to the table")
    if getattr(config, "attention_dropout", 0.0):
        raise OperatorWithoutEntry(
            "attention_dropout",
            "attention without dropout, which a training forward with attention_dropout would not equal",
            "set attention_dropout to 0",
        )


def has_experts(config: Any, layer: int) -> bool:
    """Whether decoder layer `layer` routes to experts (vLLM models/qwen3_moe.py)."""
    if layer in (getattr(config, "mlp_only_layers", None) or []):
        return False
    return bool(config.num_experts > 0 and (layer + 1) % config.decoder_sparse_step == 0)
