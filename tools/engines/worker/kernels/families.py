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
    """The operator classes that a foreign architecture most visibly needs."""
    hints = {"linear_attention": "gated_delta_net", "mamba": "mamba2", "sliding_attention": "sliding_window_attention"}
    types = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or []
    found = [hints[kind] for kind in types if kind in hints]
    if getattr(config, "kv_lora_rank", None):
        found.append("multi_head_latent_attention")
    found += [operator for operator, why in _foreign_parts(config) if why]
    return ", ".join(dict.fromkeys(found)) or f"{config.model_type} decoder layer"


def _refuse(config: Any) -> None:
    for operator, found in _foreign_parts(config):
        if found:
            raise OperatorWithoutEntry(operator, str(found), "add a row for it to the table, or use another model")


def _foreign_parts(config: Any) -> list[tuple[str, Any]]:
    """(operator, what the configuration asks for or a false value) of everything that changes a layer's computation."""

    def of(name: str) -> Any:
        return getattr(config, name, None)

    act = of("hidden_act") or "silu"
    window = of("sliding_window") if getattr(config, "use_sliding_window", True) else None
    dropout = of("attention_dropout")
    return [
        (f"{act}_and_mul", act != "silu" and f"activation {act}"),
        ("sliding_window_attention", window and f"attention over a window of {window}"),
        ("sliding_window_attention", "sliding_attention" in (of("layer_types") or []) and "sliding layers"),
        ("dual_chunk_attention", of("dual_chunk_attention_config") and "attention in two chunks"),
        ("shared_expert", of("shared_expert_intermediate_size") and "a shared expert"),
        ("encoder_attention", of("is_causal") is False and "bidirectional attention"),
        ("attention_dropout", dropout and f"attention without the dropout of {dropout} that training would have"),
    ]


def has_experts(config: Any, layer: int) -> bool:
    """Whether decoder layer `layer` routes to experts (vLLM models/qwen3_moe.py)."""
    if layer in (getattr(config, "mlp_only_layers", None) or []):
        return False
    return bool(config.num_experts > 0 and (layer + 1) % config.decoder_sparse_step == 0)
