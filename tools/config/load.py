"""Reads bitgate.toml and bitgate.d/*.toml as one configuration; every complaint names a file and a key."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from stat import S_ISREG
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError

from bitgate.tools.config.model import Config
from bitgate.tools.errors import ConfigError, nearest, shorten, shown

MAIN: Final = "bitgate.toml"
FRAGMENTS: Final = "bitgate.d"
NAMED_TABLES: Final = frozenset({"model", "side", "workload"})
MAX_FILE: Final = 1024**2
MAX_COMPLAINTS: Final = 20

Key = tuple[str, ...]
Stamp = dict[Path, tuple[int, int, int]]


@dataclass
class Merged:
    """Tables of all files, and the file each key came from."""

    tables: dict[str, Any] = field(default_factory=dict)
    origin: dict[Key, Path] = field(default_factory=dict)

    def origin_of(self, loc: Key) -> Path | None:
        """The file that the longest known prefix of `loc` came from."""
        return next((self.origin[loc[:n]] for n in range(len(loc), 0, -1) if loc[:n] in self.origin), None)


def config_files(root: Path) -> list[Path]:
    """bitgate.toml, then the fragments by name."""
    main = root / MAIN
    return ([main] if main.is_file() else []) + sorted((root / FRAGMENTS).glob("*.toml"))


def load_config(root: Path) -> Config:
    """The configuration of the project at `root`.

    Raises:
        ConfigError: a file cannot be read, two files define the same thing, a key is unknown or a value is wrong.
    """
    merged = Merged()
    for path in config_files(root):
        _merge(merged, read_toml(path), path)
    try:
        return Config.model_validate(merged.tables)
    except ValidationError as error:
        raise ConfigError("\n".join(_complaints(error, merged, root))) from error


def read_toml(path: Path) -> dict[str, Any]:
    try:
        about = path.stat()
        if not S_ISREG(about.st_mode):
            raise ConfigError(f"{path}: not a file")
        if about.st_size > MAX_FILE:
            raise ConfigError(f"{path}: larger than {MAX_FILE} bytes; put prompts in a workload's own file")
        tables = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    for key, what in _unusable(tables):
        raise ConfigError(f"{path}: {shorten('.'.join(key))}: holds {what}, which no program can be given; remove it")
    return tables


def _unusable(value: object, key: Key = ()) -> Iterator[tuple[Key, str]]:
    """What TOML allows, and neither JSON nor an environment does."""
    if isinstance(value, float) and not isfinite(value):
        yield key, f"the number {value}"
    elif isinstance(value, str) and "\0" in value:
        yield key, "a NUL character"
    elif isinstance(value, dict | list):
        for name, entry in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _unusable(entry, (*key, str(name)))


def _merge(merged: Merged, tables: dict[str, Any], path: Path) -> None:
    for key, value in _entries(tables):
        if key in merged.origin:
            raise ConfigError(f"[{'.'.join(key)}] is defined in both {merged.origin[key]} and {path}; keep one of them")
        merged.origin[key] = path
        _put(merged.tables, key, value)


def _entries(tables: dict[str, Any]) -> Iterator[tuple[Key, Any]]:
    """What one file may own: a whole table such as side.rollout, one key of [policy], or a top-level value."""
    for section, value in tables.items():
        if isinstance(value, dict) and (section in NAMED_TABLES or section == "policy"):
            yield from (((section, name), entry) for name, entry in value.items())
        else:
            yield (section,), value


def _put(tables: dict[str, Any], key: Key, value: object) -> None:
    for part in key[:-1]:
        tables = tables.setdefault(part, {})
        if not isinstance(tables, dict):
            raise ConfigError(f"{part}: is a value in one file and a table in another")
    tables[key[-1]] = value


def _complaints(error: ValidationError, merged: Merged, root: Path) -> Iterator[str]:
    problems = error.errors(include_url=False, include_context=False)
    for item in problems[:MAX_COMPLAINTS]:
        loc = tuple(str(part) for part in item["loc"])
        where = merged.origin_of(loc) or root / MAIN
        key = shorten(".".join(part for part in loc if part not in ("[key]",)))
        if item["type"] == "extra_forbidden":
            known = _known_keys(loc[:-1])
            hint = " ".join(filter(None, [nearest(loc[-1], known), f"Known here: {', '.join(known)}."]))
            yield f"{where}: unknown key {key}. {hint}"
        else:
            yield f"{where}: {key}: {_message(item['msg'])}; got {shown(item['input'])}"
    if len(problems) > MAX_COMPLAINTS:
        yield f"… and {len(problems) - MAX_COMPLAINTS} more"


def _message(text: str) -> str:
    return text.removeprefix("Value error, ")


def _known_keys(table: Key) -> list[str]:
    """The keys that the table at `table` may have, read off the types."""
    models: list[type[BaseModel]] = [Config]
    parts = [part for depth, part in enumerate(table) if not (depth == 1 and table[0] in NAMED_TABLES)]
    for part in parts:
        fields = [model.model_fields[part] for model in models if part in model.model_fields]
        tagged = [m for m in models if "kind" in m.model_fields and m.model_fields["kind"].default == part]
        models = [model for f in fields for model in _models(f.annotation)] or tagged or models
    return sorted({name for model in models for name in model.model_fields})


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


def stamp(root: Path) -> Stamp:
    """What tells that the files changed: inode, size, modification time."""
    return {path: _stamp_of(path) for path in config_files(root)}


def _stamp_of(path: Path) -> tuple[int, int, int]:
    try:
        about = path.stat()
    except OSError:
        return 0, 0, 0  # removed meanwhile, or a link to nothing: reading it says so
    return about.st_ino, about.st_size, about.st_mtime_ns
