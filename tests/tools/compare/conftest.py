"""Captures for tests: real folders, written by the writer that users copy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from bitgate.tools.captures import Capture, open_capture
from bitgate.tools.compare import PairResult, compare_pair
from bitgate.tools.engines.worker.capture import CaptureWriter

# The time of one example depends on what else runs on the machine.
settings.register_profile("bitgate", deadline=None)
settings.load_profile("bitgate")

DIGEST = "ab" * 32
Columns = dict[str, np.ndarray]
Make = Callable[..., Capture]
Compare = Callable[..., PairResult]


def _columns(sequences: int = 8, length: int = 32, seed: int = 0) -> Columns:
    rng = np.random.default_rng(seed)
    rows = sequences * length
    step = np.tile(np.arange(length), sequences)
    return {
        "sequence": np.repeat(np.arange(sequences), length),
        "position": step + 10,
        "token_id": rng.integers(0, 1000, rows),
        "mask": (step < length * 3 // 4).astype(np.uint8),
        "logprob": (-rng.exponential(2.0, rows)).astype(np.float32),
    }


@pytest.fixture
def make_columns() -> Callable[..., Columns]:
    """make_columns(sequences, length, seed): valid random rows, the last quarter of each response outside the mask."""
    return _columns


@pytest.fixture
def columns() -> Columns:
    return _columns()


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make(columns, name, **writer arguments) -> Capture, as a computation of its own."""

    def build(columns: Columns, name: str, *, computed: dict[str, Any] | None = None, **arguments: Any) -> Capture:
        folder = tmp_path / name
        with CaptureWriter(
            folder, **{"engine": "test", "role": name, "weights": {"digest": DIGEST}, **arguments}
        ) as writer:
            writer.add_columns({column: values.copy() for column, values in columns.items()})
            train = name == "first_train_forward"
            defaults = {"kind": "forward", "passes": 1, "mode": "train" if train else "eval"}
            writer.computed(**{**defaults, "grad": train, "backward": train, **(computed or {})})
        return open_capture(folder, name=name)

    return build


@pytest.fixture
def compare(make: Make) -> Compare:
    """compare(columns of a, columns of b) -> PairResult, through two captures on disk."""

    def run(a: Columns, b: Columns, **arguments: Any) -> PairResult:
        return compare_pair(make(a, "a"), make(b, "b"), **arguments)

    return run
