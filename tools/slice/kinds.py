"""How configurations say which operators a layer has: the few idioms that families share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from bitgate.tools.slice.family import Kind, layer_count
from bitgate.tools.slice.keys import Json, Selection

LEGACY: Final[dict[str, str]] = {
    "mamba": "linear_attention",
    "attention": "full_attention",
    "deepseek_sparse_attention": "indexed_attention",
}
"""transformers 5 renames these on reading (configuration_utils.remap_legacy_layer_types)."""

PATTERN: Final = {"M": "mamba2", "E": "moe", "*": "full_attention", "-": "mlp"}
"""Nemotron-H's hybrid_override_pattern."""


def uniform(*operators: str, count: str = "num_hidden_layers") -> Callable[[Json], list[Kind]]:
    """Every layer alike."""
    return lambda config: [operators] * layer_count(config, count)


def listed(config: Json, name: str, total: int, allowed: Callable[[int], str]) -> list[str]:
    """The list under `name` (old names renamed, MTP entries cut off), or `allowed(layer)` where it is absent."""
    value = config.get(name)
    if value is None:
        return [allowed(layer) for layer in range(total)]
    words = [LEGACY.get(str(item), str(item)) for item in value]
    if len(words) < total:
        raise ValueError(f"{name} has {len(words)} entries for {total} layers")
    return words[:total]


def every(config: Json, key: str, default: int, hit: str, miss: str) -> Callable[[int], str]:
    """`hit` on each `key`-th layer counted from one."""
    step = config.get(key, default)
    return lambda layer: hit if (layer + 1) % step == 0 else miss


def after_dense(config: Json, default: int, sparse: str = "moe") -> Callable[[int], str]:
    """`first_k_dense_replace` dense layers, then experts; `moe_layer_freq` may thin them or be a list of 0 and 1."""
    first = config.get("first_k_dense_replace", default)
    step: Any = config.get("moe_layer_freq", 1)
    if isinstance(step, list):
        return lambda layer: sparse if step[layer] else "dense"
    return lambda layer: sparse if layer >= first and layer % (step or 1) == 0 else "dense"


def mlp_types(config: Json, total: int, otherwise: Callable[[int], str]) -> list[str]:
    """`mlp_layer_types` with transformers' word "sparse" read as experts."""
    names = listed(config, "mlp_layer_types", total, otherwise)
    return ["moe" if name == "sparse" else name for name in names]


def paired(left: list[str], right: list[str]) -> list[Kind]:
    return list(zip(left, right, strict=True))


def qwen_dense(config: Json) -> list[bool]:
    """Qwen's experts: on each `decoder_sparse_step`-th layer that `mlp_only_layers` does not name."""
    step, only = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers") or []
    return [layer in only or (layer + 1) % step != 0 for layer in range(layer_count(config))]


@dataclass(frozen=True)
class QwenDense:
    """The step is written out as `mlp_only_layers`, so that a window may start anywhere."""

    names: tuple[str, ...] = ("mlp_only_layers", "decoder_sparse_step")

    def rewrite(self, config: Json, sel: Selection) -> None:
        dense = qwen_dense(config)
        config["mlp_only_layers"] = [new for new, old in enumerate(sel.kept) if dense[old]]
        config["decoder_sparse_step"] = 1
