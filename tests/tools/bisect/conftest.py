"""The engine's interpreter, with bitgate's own source beside its torch: as namespace, without installing anything."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).parent

Script = Callable[..., str]


@pytest.fixture(scope="session")
def script(engine_python: str, tmp_path_factory: pytest.TempPathFactory) -> Script:
    """Runs a script of this folder; returns what it printed."""
    home = tmp_path_factory.mktemp("namespace")
    (home / "bitgate").mkdir()
    for room in ("tools", "store"):
        (home / "bitgate" / room).symlink_to(ROOT / room)

    def run(name: str, *arguments: str) -> str:
        done = subprocess.run(
            [engine_python, str(HERE / name), *arguments],
            env={**os.environ, "PYTHONPATH": str(home)},
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return run


@pytest.fixture(scope="session")
def tiny(engine_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A seeded Qwen3 of two layers."""
    path = tmp_path_factory.mktemp("model") / "tiny"
    worker = ROOT / "tools" / "engines" / "worker" / "tiny_model.py"
    command = [engine_python, str(worker), str(path), "--family", "qwen3", "--layers", "2"]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return path


@pytest.fixture(scope="session")
def checkpoints(engine_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`dense` and `sparse`, both of two layers: what the lab's engines are started on."""
    path = tmp_path_factory.mktemp("checkpoints")
    command = [engine_python, str(HERE / "injector" / "checkpoints.py"), str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return path
