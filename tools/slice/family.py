"""What bitgate must know of a model family to cut it: one `Family` a file in `bitgate.tools.slice.families`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Final

from bitgate.tools.slice.keys import Count, Json, Key, Selection
from bitgate.tools.slice.operators import NameRule
from bitgate.tools.slice.refusal import CONFIG_BROKEN, FAMILY_UNKNOWN, NOT_EXPRESSIBLE, Refusal

Kind = tuple[str, ...]
"""The operators of one layer as the configuration says, e.g. ("sliding_attention", "moe")."""

WRAPPERS: Final = r"(?:(?:model|language_model|text_model|llm|thinker|backbone|transformer)\.)*"
LAYER: Final = re.compile(rf"(?P<head>{WRAPPERS})layers\.(?P<layer>0|[1-9][0-9]{{0,5}})\.(?P<rest>.+)", re.DOTALL)
MTP: Final = re.compile(rf"{WRAPPERS}mtp\.(?P<rest>.+)", re.DOTALL)
NESTS: Final = ("text_config", "llm_config", "language_config", "thinker_config")


@dataclass(frozen=True)
class Strided:
    """A tensor that holds a block for every layer along `axis`: only the blocks of the kept layers are copied."""

    pattern: str
    axis: int


def no_needs(config: Json, kinds: list[Kind]) -> Mapping[int, tuple[int, ...]]:
    return {}


@dataclass(frozen=True)
class Family:
    """`kinds` reads every layer's operators from the text configuration; `keys` rewrite it.

    `needs` names the layers that another layer reads from (shared KV, shared indices). `mtp` is the key that counts
    the MTP layers appended after the last (`layers.N`), or None where MTP has its own prefix or none exists.
    `detect` recognises a family by its keys where model_type alone does not.
    """

    names: tuple[str, ...]
    kinds: Callable[[Json], list[Kind]]
    keys: tuple[Key, ...] = ()
    count: Count = field(default_factory=Count)
    mtp: str | None = None
    mtp_keys: tuple[str, ...] = ()
    rules: tuple[NameRule, ...] = ()
    needs: Callable[[Json, list[Kind]], Mapping[int, tuple[int, ...]]] = no_needs
    strided: tuple[Strided, ...] = ()
    shared_tensors: str | None = None
    rename: Callable[[Json, str, Selection], str | None] | None = None
    depth_buffers: Callable[[Json], dict[int, tuple[str, ...]]] | None = None
    detect: Callable[[Json], bool] | None = None
    notes: tuple[str, ...] = ()

    def all_keys(self) -> tuple[Key, ...]:
        return (*self.keys, self.count)


@dataclass(frozen=True)
class Model:
    """A configuration with its family: `text` is the (possibly nested) part that describes the language layers."""

    family: Family
    config: Json
    nest: str | None
    kinds: tuple[Kind, ...]

    @property
    def text(self) -> Json:
        return text_of(self.config, self.nest)

    @property
    def total(self) -> int:
        return len(self.kinds)

    @property
    def mtp_layers(self) -> int:
        value = self.text.get(self.family.mtp) if self.family.mtp else 0
        return value if type(value) is int else 0


def text_of(config: Json, nest: str | None) -> Json:
    inner: Json = config[nest] if nest else config
    return inner


@cache
def families() -> dict[str, Family]:
    """Every family by model_type, from the files of the package: adding one file adds one."""
    package = import_module("bitgate.tools.slice.families")
    found: dict[str, Family] = {}
    for module in sorted(iter_modules(package.__path__), key=lambda item: item.name):
        family: Family = import_module(f"{package.__name__}.{module.name}").FAMILY
        found.update(dict.fromkeys(family.names, family))
    return found


def read_model(config: Json) -> Model:
    """The family and every layer's operators.

    Raises:
        Refusal: the family is not in the table, or the configuration does not describe its layers.
    """
    nest = next((name for name in NESTS if isinstance(config.get(name), dict)), None)
    text = text_of(config, nest)
    family = _family(config, text)
    try:
        kinds = tuple(family.kinds(text))
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise Refusal(
            CONFIG_BROKEN, f"config.json does not describe the layers of {family.names[0]} ({what})"
        ) from error
    if not kinds:
        raise Refusal(CONFIG_BROKEN, "config.json describes no layer")
    return Model(family, config, nest, kinds)


def _family(config: Json, text: Json) -> Family:
    known = families()
    by_keys = next((item for item in known.values() if item.detect is not None and item.detect(text)), None)
    if by_keys is not None:
        return by_keys
    for name in (config.get("model_type"), text.get("model_type")):
        if isinstance(name, str) and name in known:
            return known[name]
    listed = ", ".join(sorted(known))
    raise Refusal(FAMILY_UNKNOWN, f"model_type {str(config.get('model_type'))[:80]!r} is not one of: {listed}")


def layer_count(config: Json, name: str = "num_hidden_layers") -> int:
    """A positive number of layers from the configuration."""
    value: Any = config[name]
    if type(value) is not int or not 0 < value < 100_000:
        raise ValueError(f"{name} is {value!r}")
    return value


def rewritten(model: Model, sel: Selection, keep_mtp: bool = True) -> Json:
    """A copy of the configuration for the kept layers.

    Raises:
        Refusal: the keys of this family cannot say which operators these layers have.
    """
    config: Json = deep_copy(model.config)
    text = text_of(config, model.nest)
    for key in model.family.all_keys():
        key.rewrite(text, sel)
    if not keep_mtp:
        _without_mtp(model.family, text, len(sel.kept))
    wanted = tuple(model.kinds[layer] for layer in sel.kept)
    if read_model(config).kinds != wanted:
        layers = ", ".join(map(str, sel.kept))
        raise Refusal(NOT_EXPRESSIBLE, f"the configuration of {model.family.names[0]} cannot describe layers {layers}")
    return config


def _without_mtp(family: Family, text: Json, layers: int) -> None:
    for name in filter(None, (family.mtp, *family.mtp_keys)):
        if type(text.get(name)) is int:
            text[name] = 0
    for key in family.keys:
        for name in key.names:
            if isinstance(text.get(name), list) and len(text[name]) > layers and type(key).__name__ == "PerLayer":
                text[name] = text[name][:layers]


def deep_copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: deep_copy(item) for key, item in value.items()}
    return [deep_copy(item) for item in value] if isinstance(value, list) else value
