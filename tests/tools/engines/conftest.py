from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
WORKER = HERE.parents[2] / "tools" / "engines" / "worker"

Drive = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def interpreter() -> str:
    python = os.environ.get("BITGATE_ENGINE_PYTHON")
    if not python:
        pytest.fail("BITGATE_ENGINE_PYTHON names no engine interpreter; run `make engine`, or use `make test`")
    return python


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The worker package staged as a run has it."""
    folder = tmp_path_factory.mktemp("stage")
    shutil.copytree(WORKER, folder / "bitgate_worker", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="session")
def tiny(interpreter: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Seeded tiny checkpoints, one a family; llama's head is tied to its embedding."""
    root = tmp_path_factory.mktemp("models")
    made = {"qwen3": [], "qwen3_moe": ["--layers", "2"], "llama": ["--layers", "2", "--tied"]}
    for family, arguments in made.items():
        command = [interpreter, str(WORKER / "tiny_model.py"), str(root / family), "--family", family, *arguments]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    return {family: root / family for family in made}


@pytest.fixture(scope="session")
def drive(interpreter: str, stage: Path, tmp_path_factory: pytest.TempPathFactory) -> Drive:
    """Runs one engine in its own process: drive(engine=, model=, options=, sequences=, steps=, …) -> its report."""

    def run(**spec: Any) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("drive")
        spec = {"options": {}, "sequences": [], "steps": [], **spec, "model": str(spec["model"])}
        (folder / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
        command = [
            interpreter,
            str(HERE / "drive_engine.py"),
            str(stage),
            str(folder / "spec.json"),
            str(folder / "out.json"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=280, errors="replace")
        if done.returncode != 0:
            pytest.fail(f"the engine's process ended with {done.returncode}:\n{done.stderr[-3000:]}")
        report: dict[str, Any] = json.loads((folder / "out.json").read_text(encoding="utf-8"))
        return report

    return run


Pairs = list[tuple[list[int], list[int]]]
Different = Callable[[dict[str, Any], str, str], tuple[int, int]]


def _pairs(count: int, shortest: int, longest: int, response: int = 0) -> Pairs:
    rng = random.Random(f"{shortest} {longest}")
    lengths = [rng.randrange(shortest, longest) for _ in range(count)]
    return [
        ([rng.randrange(3, 1000) for _ in range(n)], [rng.randrange(3, 1000) for _ in range(response)]) for n in lengths
    ]


@pytest.fixture(scope="session")
def mixed() -> Pairs:
    """Twelve prompts without responses: six short, six across one or two cache blocks of 128."""
    return _pairs(6, 10, 40) + _pairs(6, 130, 265)


@pytest.fixture(scope="session")
def answered() -> Pairs:
    """Six (prompt, response) pairs to be scored."""
    return _pairs(6, 10, 120, response=12)


@pytest.fixture(scope="session")
def different() -> Different:
    """different(report, one step, another) -> rows whose token or logprob bits differ, rows compared."""

    def count(report: dict[str, Any], one: str, other: str) -> tuple[int, int]:
        a, b = report["steps"][one]["rows"], report["steps"][other]["rows"]
        shared = sorted(set(a) & set(b))
        assert shared
        return sum(a[key][:2] != b[key][:2] for key in shared), len(shared)

    return count
