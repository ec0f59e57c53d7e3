"""A project: the folder with bitgate.toml, its configuration, and where its state lives."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from bitgate.tools.config.load import FRAGMENTS, MAIN, Stamp, load_config, stamp
from bitgate.tools.config.model import Config, PolicyConfig
from bitgate.tools.config.paths import confined
from bitgate.tools.config.sides import Model, Side, anchored, resolve_side
from bitgate.tools.config.workloads import Workload
from bitgate.tools.errors import ConfigError, RequestError, unknown_name

STATE: Final = ".bitgate"
SLICE_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
"""A slice's name is a folder's name too."""


@dataclass(frozen=True)
class Project:
    root: Path
    config: Config
    loaded_from: Stamp

    @classmethod
    def find(cls, start: Path | None = None) -> Project:
        """The project at `start` (default: here) or in the nearest folder above it.

        Raises:
            ConfigError: there is none, or its configuration cannot be used.
        """
        here = (start or Path.cwd()).resolve()
        for root in (here, *here.parents):
            if (root / MAIN).is_file() or any((root / FRAGMENTS).glob("*.toml")):
                return cls.load(root)
        raise ConfigError(f"no {MAIN} in {here} or above it; run `bitgate init`, or name the project with --project")

    @classmethod
    def load(cls, root: Path) -> Project:
        seen = stamp(root)
        return cls(root=root, config=load_config(root), loaded_from=seen)

    def refreshed(self) -> Project:
        """This project as its files say now; the same object when none of them changed."""
        return self if stamp(self.root) == self.loaded_from else Project.load(self.root)

    @property
    def state(self) -> Path:
        return self.root / STATE

    @property
    def ledger(self) -> Path:
        return self.state / "ledger.db"

    @property
    def runs_dir(self) -> Path:
        return self.state / "runs"

    @property
    def policy(self) -> PolicyConfig:
        return self.config.policy

    def side(self, name: str, options: Mapping[str, JsonValue] | None = None, field: str = "side") -> Side:
        """The side `name`, with a call's `options` laid over the configured ones.

        Raises:
            RequestError: no such side; the text names the nearest one.
        """
        if name not in self.config.side:
            raise unknown_name(field, name, self.config.side, "Sides are defined in the configuration as [side.NAME].")
        side = resolve_side(name, self.config.side[name], self.root, options)
        return side if side.model or len(self.config.model) != 1 else replace(side, model=next(iter(self.config.model)))

    def model(self, name: str | None, field: str = "model") -> Model:
        """The model `name`; without a name, the only one that is configured.

        Raises:
            RequestError: no such model, or none named where several exist.
        """
        models = self.config.model
        if name is None and len(models) == 1:
            name = next(iter(models))
        if name is None:
            allowed = ", ".join(sorted(models)) or "a name defined as [model.NAME]"
            raise RequestError(field, None, allowed, "Name one of them.")
        if name not in models:
            cut = self.slice_folder(name)
            if cut is not None:
                return Model(name, cut)
            raise unknown_name(field, name, models, "Models are defined in the configuration as [model.NAME].")
        found = models[name]
        return Model(name, anchored(found.path, self.root) or self.root, found.weight_version)

    def slice_folder(self, name: str) -> Path | None:
        """Where slice_model put the slice `name`; None when there is none."""
        if not re.fullmatch(SLICE_NAME, name):
            return None
        folder = self.state / "models" / name
        return folder if (folder / "config.json").is_file() else None

    def workload(self, name: str | None, field: str = "workload") -> Workload:
        """The workload `name`; without a name, the only one that is configured.

        Raises:
            RequestError: no such workload, or none named where several exist.
        """
        workloads = self.config.workload
        if name is None and len(workloads) == 1:
            name = next(iter(workloads))
        if name is None:
            allowed = ", ".join(sorted(workloads)) or "a name defined as [workload.NAME]"
            raise RequestError(field, None, allowed, "Name one of them.")
        if name not in workloads:
            raise unknown_name(field, name, workloads, "Workloads are defined in the configuration as [workload.NAME].")
        config = workloads[name]
        return Workload(name, config, anchored(config.prompts, self.root))

    def confined(self, text: str, field: str) -> Path:
        """A file that a call names, checked to lie under the project root or a root of the policy."""
        roots = [root for text_ in self.policy.roots if (root := anchored(text_, self.root)) is not None]
        return confined(text, field, self.root, roots)
