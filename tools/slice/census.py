"""The census: every module of a model with its operator class, precision, parallel role and layer.

From the configuration and the tensors' names (and dtypes, which the headers give) alone; no weight is read.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bitgate.tools.slice.family import LAYER, MTP, Kind, Model
from bitgate.tools.slice.keys import Json
from bitgate.tools.slice.operators import CACHE_LEAVES, LAYER_RULES, MODEL_RULES, match, split_name
from bitgate.tools.slice.quant.formats import method_of
from bitgate.tools.slice.quant.precision import precision
from bitgate.tools.slice.refusal import TENSOR_MISSING, Refusal

EXPERT: Final = re.compile(r"(experts|adapter_list)\.\d+")
UNKNOWN: Final = "unknown"
SHOWN: Final = 160
OTHER_PARTS: Final = re.compile(r"mtp|nextn|quant|compression")
"""Keys that speak of MTP blocks, which keep their own numbers, or of quantisation, whose lists are carried over."""
SOFTMAX: Final = frozenset(
    (
        *("full_attention", "sliding_attention", "chunked_attention", "shared_attention", "mla"),
        *("indexed_attention", "indexed_attention_shared"),
        *("compressed_sparse_attention", "heavily_compressed_attention"),
    )
)
"""Words of layer kinds that stand for a softmax attention."""


@dataclass(frozen=True)
class Module:
    """Modules that differ only in the number of the expert are one row; `count` says how many."""

    path: str
    layer: int | None
    part: str
    operator: str
    role: str
    precision: str
    count: int = 1


@dataclass(frozen=True)
class LayerClass:
    """What makes two layers interchangeable for coverage: operators, precision of each, and the modules they have."""

    name: str
    kind: Kind
    precisions: tuple[str, ...]


@dataclass(frozen=True)
class Census:
    modules: tuple[Module, ...]
    layers: tuple[LayerClass, ...]
    unknown: tuple[str, ...]
    unknown_keys: tuple[str, ...]

    @property
    def precisions(self) -> set[str]:
        return {item.precision for item in self.modules}


@dataclass(frozen=True)
class Place:
    """Where a tensor belongs: a language layer, an MTP block, or the model around them."""

    part: str
    layer: int | None
    rest: str


def place(model: Model, name: str) -> Place:
    """Part is `layer`, `mtp` or `model`; a layer past the configured ones that is no MTP layer is `beyond`."""
    found = LAYER.fullmatch(name)
    if found is not None:
        layer = int(found["layer"])
        if layer < model.total:
            return Place("layer", layer, found["rest"])
        return Place("mtp" if layer < model.total + model.mtp_layers else "beyond", layer, found["rest"])
    mtp = MTP.fullmatch(name)
    return Place("mtp", None, mtp["rest"]) if mtp is not None else Place("model", None, name)


def take_census(model: Model, dtypes: Mapping[str, str]) -> Census:
    """`dtypes` maps every tensor's name to its safetensors dtype."""
    leaves: dict[str, dict[str, str]] = defaultdict(dict)
    for name, dtype in dtypes.items():
        path, leaf = split_name(name)
        leaves[path][leaf] = dtype
    method = method_of(quantisation(model.config) or {})
    rows = [_module(model, path, found, method) for path, found in leaves.items()]
    cores = _attention_cores(model)
    unknown = tuple(sorted(shown(row.path) for row in rows if row.operator == UNKNOWN))
    return Census((*_merged(rows), *cores), _layers(model, rows), unknown, unhandled_keys(model))


def shown(name: str) -> str:
    """A name for people: names come from the files of others and may hold line breaks or escape sequences."""
    text = name if name.isprintable() else ascii(name)[1:-1]
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def check_layers_present(model: Model, names: Iterable[str]) -> None:
    """Refuse a configuration that has layers of which the files hold nothing: a window could be cut from them."""
    present = {where.layer for name in names if (where := place(model, name)).part == "layer"}
    lost = [layer for layer in range(model.total) if layer not in present]
    if lost:
        raise Refusal(
            TENSOR_MISSING,
            f"config.json describes {model.total} layers; the files hold no tensor of {len(lost)}, first {lost[0]}",
        )


def _attention_cores(model: Model) -> list[Module]:
    """Softmax attention has no weight of its own, so no tensor names it: it is read from the layers' kinds."""
    dtype = str(
        model.text.get("dtype") or model.text.get("torch_dtype") or model.config.get("torch_dtype") or "bfloat16"
    )
    short = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(dtype.removeprefix("torch."), dtype)
    return [
        Module(f"layers.{layer} {word}", layer, "layer", f"attention:{word}", "heads", short)
        for layer, kind in enumerate(model.kinds)
        for word in dict.fromkeys(kind)
        if word in SOFTMAX
    ]


def quantisation(config: Json) -> Json | None:
    """The quantisation part, of the whole or of the language model."""
    candidates = [
        config,
        *(value for key, value in config.items() if key.endswith("_config") and isinstance(value, dict)),
    ]
    for holder in candidates:
        for key in ("quantization_config", "compression_config"):
            if isinstance(holder.get(key), dict):
                return dict(holder[key])
    return None


def _module(model: Model, path: str, leaves: Mapping[str, str], method: str) -> Module:
    where = place(model, path if "." in path else path + ".")
    where = where if where.rest else Place(where.part, where.layer, path)
    rest = where.rest.removesuffix(".")
    operator, role = _operator(model, where.part, rest, leaves)
    return Module(path, where.layer, where.part, operator, role, precision(method, leaves))


def _operator(model: Model, part: str, rest: str, leaves: Mapping[str, str]) -> tuple[str, str]:
    if part == "beyond":
        return UNKNOWN, "unknown"
    if part == "mtp":
        return "mtp", "replicated"
    if set(leaves) <= CACHE_LEAVES:
        return "kv_cache_scale", "replicated"
    rules = (*model.family.rules, *(LAYER_RULES if part == "layer" else MODEL_RULES))
    found = match(EXPERT.sub(r"\1.0", rest), rules)
    return (found.operator, found.role) if found is not None else (UNKNOWN, "unknown")


def _merged(rows: Iterable[Module]) -> tuple[Module, ...]:
    counted: dict[Module, int] = defaultdict(int)
    for row in rows:
        path = EXPERT.sub(r"\1.*", row.path)
        counted[Module(path, row.layer, row.part, row.operator, row.role, row.precision)] += 1
    return tuple(
        Module(row.path, row.layer, row.part, row.operator, row.role, row.precision, count)
        for row, count in counted.items()
    )


def _layers(model: Model, rows: Iterable[Module]) -> tuple[LayerClass, ...]:
    shapes: list[dict[str, str]] = [{} for _ in range(model.total)]
    ignored = re.compile(model.family.shared_tensors) if model.family.shared_tensors else None
    for row in rows:
        if row.part == "layer" and row.layer is not None:
            rest = EXPERT.sub(r"\1.*", row.path.split(f"layers.{row.layer}.", 1)[1])
            if ignored is None or not ignored.match(rest + "."):
                shapes[row.layer][rest] = row.precision
    return tuple(_named(model.kinds, shapes))


def _named(kinds: tuple[Kind, ...], shapes: list[dict[str, str]]) -> Iterable[LayerClass]:
    """Layers of one kind that differ in precision or modules get a number after the kind's name."""
    variants: dict[Kind, list[dict[str, str]]] = defaultdict(list)
    for kind, shape in zip(kinds, shapes, strict=True):
        if shape not in variants[kind]:
            variants[kind].append(shape)
        number = variants[kind].index(shape)
        name = "+".join(kind) + (f"#{number + 1}" if number else "")
        yield LayerClass(name, kind, tuple(sorted(set(shape.values()))))


def unhandled_keys(model: Model) -> tuple[str, ...]:
    """Keys of the configuration that seem to speak of single layers and that the family does not know."""
    known = {name.split(".")[0] for key in model.family.all_keys() for name in key.names}
    return tuple(
        shown(key)
        for key, value in model.text.items()
        if key not in known and not OTHER_PARTS.search(key) and _by_layer(model, key, value)
    )


def _by_layer(model: Model, key: str, value: Any) -> bool:
    """A list as long as the model, layer numbers under a key that says so, or an object keyed by layer numbers."""
    if isinstance(value, list):
        numbers = bool(value) and all(type(item) is int for item in value)
        lengths = {model.total, model.total + model.mtp_layers}
        return (model.total > 5 and len(value) in lengths) or (numbers and "layer" in key)
    return isinstance(value, dict) and bool(value) and all(str(name).isdecimal() for name in value)
