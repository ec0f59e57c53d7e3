"""A side, resolved: the configured one with its model, or the same with other options for one run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from bitgate.tools.config.digests import side_digest
from bitgate.tools.config.model import ExpectConfig, SideConfig
from bitgate.tools.runs.launchers import Launcher


@dataclass(frozen=True)
class Model:
    """A checkpoint directory with a name, and how many updates its weights have had."""

    name: str
    path: Path
    weight_version: int = 0


@dataclass(frozen=True)
class Side:
    """What a run needs to start a side. Everything but `options` comes from the configuration alone."""

    name: str
    engine: str
    python: str | None
    """The interpreter: an absolute path, links unresolved so that it stays the virtual environment's own."""
    launcher: Launcher
    env: Mapping[str, str]
    options: Mapping[str, JsonValue]
    axes: tuple[str, ...] | None
    """As declared; None means: as the engine's options imply."""
    owner: str | None
    expect: ExpectConfig
    model: str | None
    module: Path | None
    capture: Path | None
    source: Path | None
    url: str | None = None
    """Of engine `server`: where it listens."""
    configured: bool = True
    """False when the call tried options that the configuration does not have."""
    tried: Mapping[str, JsonValue] = field(default_factory=dict)

    def digest(self, stable: Mapping[str, JsonValue], axes: tuple[str, ...] | None = None) -> str:
        """The side digest, given the stable provenance observed and the axes in force (default: those declared)."""
        return side_digest(self.engine, self.options, axes if axes is not None else self.axes or (), self.env, stable)


def resolve_side(name: str, config: SideConfig, root: Path, tried: Mapping[str, JsonValue] | None = None) -> Side:
    """The side `name` of a project at `root`, with the options `tried` laid over the configured ones."""
    options = {**config.options, **(tried or {})}
    return Side(
        name=name,
        engine=config.engine,
        python=interpreter(config.python, root),
        launcher=config.launcher,
        env=dict(config.env),
        options=options,
        axes=config.axes,
        owner=config.owner,
        expect=config.expect,
        model=config.model,
        module=anchored(config.module, root),
        capture=anchored(config.capture, root),
        source=anchored(config.source, root),
        url=config.url,
        configured=options == config.options,
        tried=dict(tried or {}),
    )


def anchored(text: str | None, root: Path) -> Path | None:
    """A configured path: `~` expanded, relative ones taken from the project root."""
    return None if text is None else root / Path(text).expanduser()


def interpreter(text: str | None, root: Path) -> str | None:
    """A configured interpreter: a bare name is looked up on PATH, anything else is a path."""
    if text is None:
        return None
    if os.sep not in text and not text.startswith("~"):
        return shutil.which(text) or text
    return os.path.abspath(root / Path(text).expanduser())
