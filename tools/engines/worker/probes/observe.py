"""A step with its semantic points watched: the same engine, the same call, hooks in and out again."""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np
import torch

from ..engine import Engine, EngineError, Step, StepRows
from ..sequences import Sequences
from .recorder import Recorder, Target
from .taps import AFTER, Taps

TAPS = {
    "vllm": "tap_vllm:VllmTaps",
    "transformers": "tap_transformers:TransformersTaps",
    "vllm_kernels": "tap_kernels:KernelsTaps",
    "megatron": "tap_megatron:MegatronTaps",
    "python": "tap_python:PythonTaps",
}
"""Engine -> its taps. To add an engine: one module, one row."""


def observed(
    name: str, engine: Engine, step: Step, sequences: Sequences, folder: str, checkpoint: str = ""
) -> tuple[StepRows, dict[str, Any]]:
    """Runs `step` watched; writes hashes or operator programs to `folder`; returns the rows and what was seen.

    checkpoint: the folder that the engine's model was loaded from, if weights are to be looked for in it.
    """
    wanted = step["observe"]
    recorder = Recorder(_target(wanted.get("target")))
    taps = taps_of(name, engine, recorder, set(step.get("company") or ()))
    try:
        taps.start()
        rows = engine.run({k: v for k, v in step.items() if k != "observe"}, sequences)
    finally:
        taps.remove()
    recorder.close_trace()
    _logprobs(recorder, rows)
    return rows, recorder.save(os.path.join(folder, step["name"]), checkpoint)


def taps_of(name: str, engine: Engine, recorder: Recorder, company: set[int]) -> Taps:
    if name not in TAPS:
        raise EngineError("unsupported_observation", f"engine {name!r} has no taps; there are {', '.join(TAPS)}")
    module, _, attribute = TAPS[name].partition(":")
    made: Taps = getattr(importlib.import_module(f"{__package__}.{module}"), attribute)(recorder, engine, company)
    return made


def _target(given: dict[str, Any] | None) -> Target | None:
    if given is None:
        return None
    inputs = tuple((int(layer), str(name)) for layer, name in given["inputs"])
    layer, name = given["output"]
    return Target(
        tuple(given["layers"]), inputs, (int(layer), str(name)), int(given["sequence"]), int(given["position"])
    )


def _logprobs(recorder: Recorder, rows: StepRows) -> None:
    """The point `logprob` is what the step reports, under the key of the row that predicts the token."""
    if recorder.target is not None:
        return
    columns = {n: np.asarray(v.detach().cpu() if hasattr(v, "detach") else v) for n, v in rows.columns.items()}
    if len(columns["sequence"]) == 0:
        return
    keys = np.stack([columns["sequence"].astype(np.int64), columns["position"].astype(np.int64) - 1], axis=1)
    values = torch.from_numpy(np.ascontiguousarray(columns["logprob"], np.float32))[:, None]
    recorder.point(AFTER, "logprob", values, keys=keys)
