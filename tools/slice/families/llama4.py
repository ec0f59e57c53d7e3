"""Llama 4: chunked attention with rope and full attention without, experts on some layers.

transformers reads the lists, vLLM the step for experts: a slice must satisfy both, so its start follows the step.
"""

from __future__ import annotations

from dataclasses import dataclass

from bitgate.tools.slice.family import Family, Kind, layer_count
from bitgate.tools.slice.keys import Explicit, Json, Selection
from bitgate.tools.slice.kinds import listed


def rope(config: Json) -> list[int]:
    every = config.get("no_rope_layer_interval", 4)
    total = layer_count(config)
    return list(config.get("no_rope_layers") or [int((layer + 1) % every != 0) for layer in range(total)])[:total]


def stepped(config: Json) -> list[int]:
    step = config.get("interleave_moe_layer_step", 1)
    return list(range(step - 1, layer_count(config), step)) if step else []


def moe(config: Json) -> list[int]:
    listed_layers = config.get("moe_layers")
    return stepped(config) if listed_layers is None else [i for i in listed_layers if i < layer_count(config)]


def types(config: Json) -> list[str]:
    with_rope = rope(config)
    return listed(
        config, "layer_types", len(with_rope), lambda i: "chunked_attention" if with_rope[i] else "full_attention"
    )


def kinds(config: Json) -> list[Kind]:
    with_rope, experts, also = rope(config), moe(config), stepped(config)
    return [
        (
            word,
            "rope" if with_rope[layer] else "nope",
            "moe" if layer in experts else "mlp",
            *(() if (layer in experts) == (layer in also) else ("off_step",)),
        )
        for layer, word in enumerate(types(config))
    ]


@dataclass(frozen=True)
class ExpertLayers:
    names: tuple[str, ...] = ("moe_layers", "interleave_moe_layer_step")

    def rewrite(self, config: Json, sel: Selection) -> None:
        experts = moe(config)
        config["moe_layers"] = [new for new, old in enumerate(sel.kept) if old in experts]


FAMILY = Family(
    names=("llama4", "llama4_text"),
    kinds=kinds,
    keys=(ExpertLayers(), Explicit("layer_types", types), Explicit("no_rope_layers", rope)),
)
