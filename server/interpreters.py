"""Finds interpreters on this machine that have an engine, for `bitgate init`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from bitgate.server.probing import PACKAGES, Probe, probe

ENGINE_PYTHON: Final = "BITGATE_ENGINE_PYTHON"
LOOK_S: Final = 20.0
LOOKED_FOR: Final = tuple(p for p in PACKAGES if p.name in ("torch", "vllm", "transformers", "megatron"))
MAX_LOOKED_AT: Final = 12


def candidates(root: Path) -> list[str]:
    """Interpreters worth asking, the likeliest first; links are kept, so that a virtual environment stays one."""
    found = [str(path) for path in _places(root) if path.is_file() and os.access(path, os.X_OK)]
    return list(dict.fromkeys(found))[:MAX_LOOKED_AT]


def _places(root: Path) -> Iterator[Path]:
    if named := os.environ.get(ENGINE_PYTHON):
        yield Path(named)
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if prefix := os.environ.get(variable):
            yield Path(prefix) / "bin" / "python"
    yield from _inside(root.glob(".venv*"), root.glob("venv*"), root.glob("env*"))
    for base in (Path.home() / "miniconda3", Path.home() / "anaconda3", Path("/opt/conda"), Path("/opt/miniconda3")):
        yield from _inside(base.glob("envs/*"), [base])
    yield from _inside(Path("/opt").glob("venv*"))
    if on_path := shutil.which("python3"):
        yield Path(on_path)


def _inside(*groups: Iterable[Path]) -> Iterator[Path]:
    for group in groups:
        yield from (folder / "bin" / "python" for folder in sorted(group))


def looked_at(pythons: Iterable[str]) -> list[Probe]:
    """Each interpreter with the engines it has, found without importing them."""
    asked = [probe(python, {}, timeout_s=LOOK_S, imports=False, packages=LOOKED_FOR) for python in pythons]
    return [found for found in asked if found.problem is None]


def first_with(probes: Iterable[Probe], *names: str) -> str | None:
    """The first interpreter that has all of `names`."""
    return next((p.python for p in probes if all(p.package(name).state == "found" for name in names)), None)


def engines_in(found: Probe) -> str:
    """What an interpreter has, for a list that a person chooses from."""
    have = [f"{p.name} {p.version or ''}".strip() for p in found.packages if p.state == "found"]
    return ", ".join(have) or "no engine"
