"""Captures for tests: real folders, written by the writer that users copy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bitgate.tools.captures import Capture, open_capture
from bitgate.tools.engines.worker.capture import CaptureWriter

DIGEST = "ab" * 32
Columns = dict[str, np.ndarray]
MakeCapture = Callable[..., Capture]


def make_columns(sequences: int = 8, length: int = 32, seed: int = 0) -> Columns:
    """Valid random rows: `sequences` responses of `length` tokens, the last quarter of each outside the mask."""
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
def columns() -> Columns:
    return make_columns()


@pytest.fixture
def make(tmp_path: Path) -> MakeCapture:
    """make(columns, name, **writer arguments) -> Capture."""

    def build(columns: Columns, name: str, *, computed: bool | dict[str, Any] = True, **arguments: Any) -> Capture:
        folder = tmp_path / name
        with CaptureWriter(
            folder, **{"engine": "test", "role": name, "weights": {"digest": DIGEST}, **arguments}
        ) as writer:
            writer.add_columns(columns)
            if computed:
                train = name == "first_train_forward"
                stated = computed if isinstance(computed, dict) else {}
                defaults = {"kind": "forward", "passes": 1, "mode": "train" if train else "eval"}
                writer.computed(**{**defaults, "grad": train, "backward": train, **stated})
        return open_capture(folder, name=name)

    return build
