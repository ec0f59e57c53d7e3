"""Real vLLM and the trainer on tiny checkpoints, each started once; the tests read what they left behind."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[4]
FAMILIES = ("qwen3", "llama", "qwen3_moe")
WORKER = ROOT / "tools/engines/worker"
LAB = Path(__file__).parent / "lab"

OPTIONS = {"batch_invariant": True, "enforce_eager": True, "max_model_len": 512, "dtype": "bfloat16"}
LENGTHS = (3, 15, 16, 17, 31, 32, 33, 96, 127, 128, 129, 180)
"""Around the 16-row tiles and, with 24 sampled tokens, across the edges of the engine's 128-token KV blocks."""
MAX_TOKENS = 24


@dataclass(frozen=True)
class Ran:
    """One job of the worker."""

    folder: Path
    result: dict[str, Any]

    def bits(self, step: str) -> dict[tuple[int, int, int], int]:
        """(sequence, position, token) -> the logprob's float32 bit pattern."""
        import numpy as np

        rows = self.rows(step)
        columns = rows["sequence"], rows["position"], rows["token_id"], rows["logprob"].view(np.uint32)
        return {(int(s), int(p), int(t)): int(b) for s, p, t, b in zip(*columns, strict=True)}

    def rows(self, step: str) -> dict[str, Any]:
        from safetensors.numpy import load_file

        return load_file(self.folder / f"out/rank00000/captures/{step}/rows.safetensors")

    def sampled(self, step: str, count: int) -> list[list[int]]:
        rows = self.rows(step)
        return [rows["token_id"][rows["sequence"] == index].tolist() for index in range(count)]

    @property
    def kernels(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = self.result["describe"]["stable"]["kernels"]
        return found


@dataclass
class Bench:
    """Starts the staged worker, as the supervisor does."""

    python: str
    folder: Path
    started: int = 0

    def run(
        self,
        engine: str,
        model: Path,
        steps: list[dict[str, Any]],
        prompts: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        *,
        options: dict[str, Any] | None = None,
        version: int = 0,
    ) -> Ran:
        from bitgate.tools.engines.worker.sequences import write_sequences

        self.started += 1
        folder = self.folder / f"job{self.started}"
        shutil.copytree(WORKER, folder / "stage/bitgate_worker", ignore=shutil.ignore_patterns("__pycache__"))
        write_sequences(folder / "sequences.safetensors", prompts, responses)
        (folder / "lease").touch()
        job = {
            "version": 1,
            "run_id": "run_test",
            "side": engine,
            "engine": engine,
            "model_path": str(model),
            "weight_version": version,
            "options": OPTIONS | (options or {}),
            "sequences": str(folder / "sequences.safetensors"),
            "steps": steps,
            "out": str(folder / "out"),
            "lease": str(folder / "lease"),
            "lease_max_age_s": 3600.0,
            "log_limit": 1 << 24,
            "module": None,
        }
        (folder / "job.json").write_text(json.dumps(job, allow_nan=False), encoding="utf-8")
        command = [self.python, str(folder / "stage/bitgate_worker/run.py"), str(folder / "job.json")]
        done = subprocess.run([*command, "--rank", "0", "--world", "1"], capture_output=True, text=True, timeout=600)
        result = folder / "out/rank00000/result.json"
        assert result.exists(), f"{done.stderr[-3000:]}"
        return Ran(folder, json.loads(result.read_text(encoding="utf-8")))

    def script(self, path: Path, *arguments: str) -> dict[str, Any]:
        """A script of the lab, which writes its report to the last argument."""
        self.started += 1
        report = self.folder / f"report{self.started}.json"
        done = subprocess.run(
            [self.python, str(path), *arguments, str(report)], capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stderr[-4000:]
        found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
        return found


def step(kind: str, name: str, groups: list[list[int]], **more: Any) -> dict[str, Any]:
    return {"kind": kind, "name": name, "groups": groups, **more}


@dataclass(frozen=True)
class Case:
    """A tiny checkpoint, what vLLM sampled with it, and what the trainer made of the same tokens."""

    model: Path
    prompts: list[list[int]]
    responses: list[list[int]]
    rollout: Ran
    trainer: Ran
    everything: list[list[int]] = field(default_factory=list)


def prompts_of(seed: int) -> list[list[int]]:
    """One prompt of each length, the last three sharing the 100 tokens that an earlier one starts with."""
    generator = random.Random(seed)
    made = [[generator.randrange(3, 1024) for _ in range(length)] for length in LENGTHS]
    return [*made, *(made[9][:100] + [generator.randrange(3, 1024) for _ in range(extra)] for extra in (1, 7, 28))]


@pytest.fixture(scope="session")
def engine() -> str:
    python = os.environ.get("BITGATE_ENGINE_PYTHON")
    if not python:
        pytest.fail("BITGATE_ENGINE_PYTHON names no engine interpreter; run `make engine`, or use `make test`")
    return python


@pytest.fixture(scope="session")
def bench(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(engine, tmp_path_factory.mktemp("kernels"))


@pytest.fixture(scope="session")
def tiny(bench: Bench) -> Callable[[str, int], Path]:
    """A checkpoint of a family and a seed. Llama's head is tied: its weight is the embedding's."""
    made: dict[tuple[str, int], Path] = {}

    def make(family: str, seed: int) -> Path:
        if (family, seed) not in made:
            path = bench.folder / f"{family}-{seed}"
            arguments = ["--family", family, "--seed", str(seed), *(["--tied"] if family == "llama" else [])]
            script = [bench.python, str(WORKER / "tiny_model.py"), str(path), *arguments]
            subprocess.run(script, check=True, capture_output=True, timeout=300)
            made[family, seed] = path
        return made[family, seed]

    return make


@pytest.fixture(scope="session")
def case(bench: Bench, tiny: Callable[[str, int], Path]) -> Callable[[str, int], Case]:
    """A family at a seed, sampled by vLLM and scored by the trainer in every layout."""
    made: dict[tuple[str, int], Case] = {}

    def make(family: str, seed: int) -> Case:
        if (family, seed) not in made:
            made[family, seed] = _case(bench, tiny(family, seed), seed)
        return made[family, seed]

    return make


def _case(bench: Bench, model: Path, seed: int) -> Case:
    prompts = prompts_of(seed)
    whole = [list(range(len(prompts)))]
    rollout = bench.run("vllm", model, rollout_steps(whole), prompts, [[] for _ in prompts])
    assert rollout.result["error"] is None, rollout.result["error"]
    responses = rollout.sampled("sampled", len(prompts))
    trainer = bench.run("vllm_kernels", model, trainer_steps(len(prompts)), prompts, responses)
    assert trainer.result["error"] is None, trainer.result["error"]
    return Case(model, prompts, responses, rollout, trainer, whole)


def rollout_steps(whole: list[list[int]]) -> list[dict[str, Any]]:
    return [
        step("generate", "sampled", whole, company=[], max_tokens=MAX_TOKENS, sampling={"temperature": 1.0}),
        step("prefill", "prefilled", whole, company=[], packing="engine"),
    ]


def trainer_steps(count: int) -> list[dict[str, Any]]:
    whole, order = [list(range(count))], list(range(count))
    random.Random(count).shuffle(order)
    return [
        step("prefill", "recompute", whole, company=[], packing="engine"),
        step("train_forward", "single", whole, packing="single"),
        step("train_forward", "packed", whole, packing="packed"),
        step("train_forward", "micro_batches", cut(list(range(count)), 4), packing="packed"),
        step("train_forward", "padded", cut(list(range(count)), 4), packing="padded"),
        step("train_forward", "shuffled", cut(order, 5), packing="packed"),
        step("prefill", "in_company", [[0, count - 1]], company=[0], packing="packed"),
        step("canary", "canary", [[0, 1, 2]]),
    ]


def cut(indices: list[int], size: int) -> list[list[int]]:
    return [indices[start : start + size] for start in range(0, len(indices), size)]


@pytest.fixture(scope="session")
def lab(bench: Bench, tiny: Callable[[str, int], Path]) -> dict[str, Any]:
    """What one process of the engine's interpreter found out about operators, models and refusals."""
    folder = bench.folder / "lab"
    folder.mkdir()
    for seed, family in enumerate(FAMILIES):
        (folder / family).symlink_to(tiny(family, seed))
    return bench.script(LAB / "vllm_lab.py", str(folder))
