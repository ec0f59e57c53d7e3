"""The lists of quantisation configurations that may name layers, and who reads them: one row a list.

A row says under which keys the rules lie and which consumers' matching must give the same answer after a cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

Json = dict[str, Any]
Shape = Literal["list", "map", "groups", "nested"]
"""Rules are list entries; or keys of an object; or the `targets` of each group; or lists of lists."""


@dataclass(frozen=True)
class RuleList:
    key: str
    shape: Shape
    consumers: tuple[str, ...]
    methods: tuple[str, ...] = ()
    """Only for these quant_method values; empty means any other."""


RULE_LISTS: Final[tuple[RuleList, ...]] = (
    RuleList("modules_to_not_convert", "list", ("transformers", "vllm substring"), ("awq", "moe_wna16", "auto-round")),
    RuleList("modules_to_not_convert", "list", ("transformers", "vllm exact")),
    RuleList("ignored_layers", "list", ("transformers", "vllm exact")),
    RuleList("llm_int8_skip_modules", "list", ("transformers", "vllm substring")),
    RuleList("ignore", "list", ("compressed-tensors",), ("compressed-tensors",)),
    RuleList("ignore", "list", ("modelopt",)),
    RuleList("exclude_modules", "list", ("modelopt",)),
    RuleList("exclude", "list", ("quark",)),
    RuleList("targets", "list", ("compressed-tensors",)),
    RuleList("config_groups", "groups", ("compressed-tensors",)),
    RuleList("quantized_layers", "map", ("vllm exact",)),
    RuleList("layer_quant_config", "map", ("quark",)),
    RuleList("dynamic", "map", ("gptq",)),
    RuleList("modules_in_block_to_quantize", "nested", ("vllm substring",)),
)


PARTS: Final = ("quantization", "sparsity_config")
"""Objects inside a configuration that hold lists too: ModelOpt's own file, and compressed-tensors."""


def method_of(config: Json) -> str:
    """The quant_method; ModelOpt's own file has it under `quantization` or `producer`."""
    found = config.get("quant_method")
    if isinstance(found, str):
        return found.lower()
    producer = config.get("producer")
    name = producer.get("name") if isinstance(producer, dict) else None
    return str(name or "unknown").lower()


def rule_lists(config: Json) -> Iterator[tuple[Json, RuleList]]:
    """Each list that `config` (or its `quantization` part) holds, with the object that holds it."""
    method = method_of(config)
    for holder in (config, *(config.get(part) for part in PARTS)):
        if not isinstance(holder, dict):
            continue
        for key in dict.fromkeys(row.key for row in RULE_LISTS):
            rows = [row for row in RULE_LISTS if row.key == key]
            if holder.get(key):
                yield holder, next((row for row in rows if method in row.methods), rows[-1])


def well_formed(holder: Json, row: RuleList) -> bool:
    """Whether the list has the shape that its row says; what has another cannot be carried over."""
    value = holder[row.key]
    if row.shape == "list":
        return _texts(value)
    if row.shape == "nested":
        return isinstance(value, list) and all(isinstance(part, str) or _texts(part) for part in value)
    if row.shape == "map":
        return isinstance(value, dict)
    return isinstance(value, dict) and all(
        isinstance(group, dict) and _texts(group.get("targets") or []) for group in value.values()
    )


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def rules_of(holder: Json, row: RuleList) -> list[tuple[str, list[str]]]:
    """(label, rules) pairs of a well-formed list; the label tells apart what the rules decide."""
    value = holder[row.key]
    if row.shape == "list":
        return [("listed", value)]
    if row.shape == "nested":
        return [("listed", [item for part in value for item in (part if isinstance(part, list) else [part])])]
    if row.shape == "groups":
        return [(key, group.get("targets") or []) for key, group in value.items()]
    alike: dict[str, list[str]] = {}
    for key, item in value.items():
        alike.setdefault(repr(item), []).append(key)
    return list(alike.items())
