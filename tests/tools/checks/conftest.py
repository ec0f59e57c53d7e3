"""Projects whose captures lie on disk, and runs of run_compare on them from start to end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from bitgate.store import Store
from bitgate.store.records import Evidence, Run
from bitgate.tools.config.project import Project
from bitgate.tools.engines.worker.capture import CaptureWriter
from bitgate.tools.run_compare import CompareRequest
from bitgate.tools.runs.control import start_run, wait_run

MODES = {
    "rollout": {"kind": "decode", "mode": "eval"},
    "recompute": {"kind": "forward", "mode": "eval"},
    "first_train_forward": {"kind": "forward", "mode": "train", "grad": True, "backward": True},
}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "bitgate.toml").write_text("[policy]\ndisk_reserve = 0\n", encoding="utf-8")
    return Project.load(tmp_path)


@dataclass(frozen=True)
class Written:
    """Writes capture folders into a project."""

    root: Path

    def __call__(self, name: str, logprob: np.ndarray, *, weights: str = "ab" * 32, **writer: Any) -> str:
        rows = len(logprob)
        columns = {
            "sequence": np.repeat(np.arange(rows // 8), 8),
            "position": np.tile(np.arange(8) + 5, rows // 8),
            "token_id": np.arange(rows) % 97,
            "mask": np.ones(rows, np.uint8),
            "logprob": logprob.astype(np.float32),
        }
        with CaptureWriter(
            self.root / name, engine="test", role=name, weights={"digest": weights, "version": 0}, **writer
        ) as capture:
            capture.add_columns(columns)
            capture.computed(passes=1, **MODES.get(name, MODES["recompute"]))
        return name


@pytest.fixture
def write(project: Project) -> Written:
    return Written(project.root)


@pytest.fixture
def logprob() -> np.ndarray:
    return -np.random.default_rng(7).exponential(2.0, 64).astype(np.float32)


def run_compare(project: Project, **request: Any) -> tuple[Run, Evidence | None]:
    async def to_end() -> Run:
        started = await start_run(project, "run_compare", CompareRequest(**request), actor="tester")
        return await wait_run(project, started.id, 60)

    run = anyio.run(to_end)
    with Store.open(project.ledger) as store:
        return run, store.get_evidence(run.evidence_id) if run.evidence_id else None


Compared = Callable[..., tuple[Run, Evidence | None]]


@pytest.fixture
def compare(project: Project) -> Compared:
    """compare(check=…, captures=…): the run and its evidence."""

    return partial(run_compare, project)


@pytest.fixture
def compare_in() -> Compared:
    """compare_in(project, check=…): as `compare`, in a project of the test's own."""
    return run_compare
