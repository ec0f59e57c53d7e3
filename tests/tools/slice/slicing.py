"""What the slicing tests share: cutting in one call, and calling the engine interpreter."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bitgate.tools.slice.census import Census, take_census
from bitgate.tools.slice.checkpoint import Checkpoint, open_checkpoint
from bitgate.tools.slice.cut import CutResult, cut
from bitgate.tools.slice.family import Model, read_model
from bitgate.tools.slice.layout import Layout, lay_out
from bitgate.tools.slice.plan import Plan, make_plan
from bitgate.tools.slice.proof import job_options

HERE = Path(__file__).parent
LAYER_BY_LAYER = {"memory_bytes": 1, "size": 0}
TWICE = ("deepseek_v3", "gemma4_text", "glm_moe_dsa", "nemotron_h", "zamba2", "falcon_h1", "bamba", "qwen3_next")
"""Families whose window equivalence is also run layer by layer from the files: each has another trap."""


@dataclass(frozen=True)
class Sliced:
    checkpoint: Checkpoint
    model: Model
    census: Census
    plan: Plan
    layout: Layout
    result: CutResult


def slice_of(source: Path, out: Path, limit: int = 12, layers: list[int] | None = None, **options: Any) -> Sliced:
    checkpoint = open_checkpoint(source)
    model = read_model(checkpoint.config)
    census = take_census(model, {entry.name: entry.dtype for entry in checkpoint.tensors.values()})
    plan = make_plan(model, census, layers, limit)
    layout = lay_out(checkpoint, model, plan.selection, **options)
    result = cut(checkpoint, layout, out, {"layers": list(plan.kept)}, lambda done, total: None)
    return Sliced(checkpoint, model, census, plan, layout, result)


def engine_call(*arguments: str) -> None:
    python = os.environ.get("BITGATE_ENGINE_PYTHON")
    if not python:
        pytest.fail("BITGATE_ENGINE_PYTHON names no engine interpreter; run `make engine`, or use `make test`")
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([python, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def order(name: str, item: Sliced) -> dict[str, Any]:
    options = job_options(item.checkpoint, item.model, item.plan, item.layout, (), 1 << 40)
    wanted: dict[str, Any] = {"transformers": {}, "window": {}}
    if name in TWICE:
        wanted["window by layer"] = LAYER_BY_LAYER
    return {**options, "slice": str(item.result.path), "proofs": wanted}
