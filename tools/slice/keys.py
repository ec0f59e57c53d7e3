"""Configuration keys that say something about each layer, and how each kind is rewritten for the kept layers.

A family lists its keys; what they mean lives here once. Every kind tolerates that the key is absent. After all keys
are rewritten, the family reads its layers again from the new configuration and they must be the kept ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Json = dict[str, Any]


@dataclass(frozen=True)
class Selection:
    """Which layers of `total` are kept, ascending; a kept layer's new number is its place."""

    kept: tuple[int, ...]
    total: int

    def new(self, old: int) -> int | None:
        return self.kept.index(old) if old in self.kept else None

    @property
    def contiguous(self) -> bool:
        return self.kept == tuple(range(self.kept[0], self.kept[-1] + 1))


class Key(Protocol):
    @property
    def names(self) -> tuple[str, ...]:
        """The keys this handles, dotted when nested."""
        ...

    def rewrite(self, config: Json, sel: Selection) -> None: ...


def lookup(config: Json, name: str) -> Any:
    """The value under a dotted name, or None."""
    value: Any = config
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def put(config: Json, name: str, value: Any) -> None:
    *parents, last = name.split(".")
    for part in parents:
        config = config[part]
    config[last] = value


def drop(config: Json, *names: str) -> None:
    for name in names:
        config.pop(name, None)


@dataclass(frozen=True)
class Named:
    """One key: what `kept` makes of its value takes its place; None leaves it as it is."""

    name: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def rewrite(self, config: Json, sel: Selection) -> None:
        value = self.kept(lookup(config, self.name), sel)
        if value is not None:
            put(config, self.name, value)

    def kept(self, value: Any, sel: Selection) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class Count(Named):
    """The number of layers, times `factor` (LongCat counts two sub-layers as hidden layers)."""

    name: str = "num_hidden_layers"
    factor: int = 1

    def kept(self, value: Any, sel: Selection) -> Any:
        return None if value is None else self.factor * len(sel.kept)


class PerLayer(Named):
    """A list or string with one entry a layer; entries past the last layer belong to MTP layers and stay at the end."""

    def kept(self, value: Any, sel: Selection) -> Any:
        if not isinstance(value, str | list) or len(value) < sel.total:
            return None
        chosen = [value[i] for i in sel.kept]
        return "".join(chosen) + value[sel.total :] if isinstance(value, str) else chosen + value[sel.total :]


@dataclass(frozen=True)
class Indices(Named):
    """A list of layer numbers, counted from `base`; numbers past the last layer (MTP) shift with it."""

    base: int = 0

    def kept(self, value: Any, sel: Selection) -> Any:
        if not isinstance(value, list) or any(type(item) is not int for item in value):
            return None
        moved = [moved_index(item - self.base, sel) for item in value]
        return [item + self.base for item in moved if item is not None]


class Index(Named):
    """One layer number; -1 or None means none, and so does a layer that is not kept."""

    def kept(self, value: Any, sel: Selection) -> Any:
        if type(value) is not int or value < 0:
            return None
        moved = moved_index(value, sel)
        return -1 if moved is None else moved


class IndexedMap(Named):
    """An object keyed by layer numbers written as text ("05"), as Gemma 4's per_layer_config."""

    def kept(self, value: Any, sel: Selection) -> Any:
        if not isinstance(value, dict):
            return None
        width = max((len(key) for key in value), default=1)
        moved = {sel.new(int(key)): item for key, item in value.items() if key.isdecimal()}
        return {str(new).zfill(width): moved[new] for new in sorted(k for k in moved if k is not None)}


@dataclass(frozen=True)
class Prefix(Named):
    """How many leading layers are of one kind; written out even when it was absent and `default` held."""

    default: int | None = None

    def kept(self, value: Any, sel: Selection) -> Any:
        limit = self.default if value is None else value
        return sum(1 for layer in sel.kept if layer < limit) if type(limit) is int else None


class Suffix(Named):
    """How many trailing layers are of one kind (Gemma 4's num_kv_shared_layers)."""

    def kept(self, value: Any, sel: Selection) -> Any:
        return sum(1 for layer in sel.kept if layer >= sel.total - value) if type(value) is int else None


@dataclass(frozen=True)
class Explicit:
    """A list that replaces a period: written out from `derive`, so that a window may start anywhere; `periods` go."""

    name: str
    derive: Callable[[Json], list[Any]]
    periods: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.periods)

    def rewrite(self, config: Json, sel: Selection) -> None:
        full = self.derive(config)
        put(config, self.name, [full[i] for i in sel.kept])
        drop(config, *self.periods)


@dataclass(frozen=True)
class Periodic:
    """`layer % period == offset` chooses layers, and no list can say it (Jamba): the offset turns with the window."""

    period: str
    offset: str
    defaults: tuple[int, int]

    @property
    def names(self) -> tuple[str, ...]:
        return (self.period, self.offset)

    def chosen(self, config: Json, total: int) -> list[bool]:
        period, offset = config.get(self.period, self.defaults[0]), config.get(self.offset, self.defaults[1])
        return [layer % period == offset for layer in range(total)]

    def rewrite(self, config: Json, sel: Selection) -> None:
        full = self.chosen(config, sel.total)
        wanted = [full[layer] for layer in sel.kept]
        period = config.get(self.period, self.defaults[0])
        fitting = (
            (length, offset)
            for length in (period, *range(1, len(sel.kept) + 2))
            for offset in range(length)
            if [layer % length == offset for layer in range(len(sel.kept))] == wanted
        )
        found = next(fitting, None)
        if found is not None:
            config[self.period], config[self.offset] = found


@dataclass(frozen=True)
class Ordinal:
    """A list with one entry for each layer of some kind, in order (Nemotron-H's list of MLP widths)."""

    name: str
    member: Callable[[Json], list[bool]]

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def rewrite(self, config: Json, sel: Selection) -> None:
        value = lookup(config, self.name)
        if isinstance(value, list):
            layers = [layer for layer, chosen in enumerate(self.member(config)) if chosen]
            if len(value) == len(layers):
                put(config, self.name, [value[layers.index(layer)] for layer in sel.kept if layer in layers])


def moved_index(old: int, sel: Selection) -> int | None:
    """The new number of an old layer number; MTP layers keep their distance from the last layer."""
    return old - sel.total + len(sel.kept) if old >= sel.total else sel.new(old)


def spread(values: Sequence[Any], total: int) -> list[Any]:
    """The first `total` entries: lists may carry MTP entries at the end."""
    return list(values[:total])
