"""The python engine: a user's module with `load` and `score` (docs/engines.md). Its word is `attested`."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..engine import PREFILL, EngineError, Perturbation, Step, StepRows
from ..hardware import hardware, versions
from ..job import Job
from ..sequences import Sequences
from ..weights import CheckpointReader

REQUIRED = ("load", "score")


class Tokens(NamedTuple):
    """One sequence as `score` gets it: prompt and response tokens, and where the response starts."""

    tokens: list[int]
    response_start: int


class PythonEngine:
    """Calls the user's functions and checks what comes back; optional `weights(state)` makes its weights comparable."""

    def __init__(self, model_path: str, options: Mapping[str, Any], job: Job) -> None:
        self._path, self._file = model_path, job.module
        self._place, self._progress = job.place, job.progress
        self._module = _load_module(self._file)
        self._state = self._module.load(model_path, dict(options))

    def describe(self) -> dict[str, dict[str, Any]]:
        described = getattr(self._module, "describe", None)
        own = described(self._state) if described else {}
        stable = {
            "platform": str(own.get("platform", "cpu")) if isinstance(own, dict) else "cpu",
            "versions": versions(("torch", "numpy", "transformers", "safetensors")),
            "hardware": hardware("cpu"),
            "module": {"file": os.path.basename(str(self._file)), "sha256": _digest(str(self._file))},
            "functions": sorted(name for name in (*REQUIRED, "weights", "describe") if hasattr(self._module, name)),
            "attested": own,
        }
        return {"stable": stable, "volatile": {"path": self._file, "process": os.getpid()}}

    def weights(self) -> Iterator[tuple[str, Any]]:
        given = dict(self._live_weights() or ())
        yield from given.items()
        reason = "the module does not hand it out" if given else "the module has no function weights(state)"
        for name in CheckpointReader(self._path):
            if name not in given:
                yield name, reason

    def _live_weights(self) -> Iterator[tuple[str, Any]] | None:
        weights = getattr(self._module, "weights", None)
        return None if weights is None else weights(self._state)

    def run(self, step: Step, sequences: Sequences) -> StepRows:
        if step["kind"] not in ("prefill", "train_forward"):
            raise EngineError(
                "unsupported_step",
                f"step {step['name']}: a python module has no {step['kind']}; it scores given tokens",
            )
        if step.get("packing", "engine") != "engine":
            raise EngineError("unsupported_packing", "a python module lays out its own batches; use packing 'engine'")
        started, train = time.monotonic(), step["kind"] == "train_forward"
        groups = step["groups"][self._place.rank :: self._place.world_size]
        scored = [
            (i, self._checked(i, values, sequences), len(group))
            for group in groups
            for i, values in zip(group, self._score(group, sequences, step["kind"]), strict=True)
        ]
        computation = {
            "kind": "module",
            "passes": len(groups),
            "mode": "train" if train else "eval",
            "grad": train,
            "backward": train,
            "seconds": time.monotonic() - started,
            "tokens": sum(len(values) for _, values, _ in scored),
        }
        return StepRows(_columns(scored, sequences), {"groups": len(groups)}, computation, grade="attested")

    def _score(self, group: list[int], sequences: Sequences, mode: str) -> list[Any]:
        given = [Tokens(sequences.whole(i), len(sequences.prompt(i))) for i in group]
        scored = self._module.score(self._state, given, mode)
        if not isinstance(scored, list | tuple) or len(scored) != len(group):
            raise EngineError(
                "bad_module_result",
                f"score() must return a list with one entry a sequence ({len(group)}); it returned {_shape(scored)}",
            )
        if mode == "train_forward":
            _backward(scored)
        return list(scored)

    def _checked(self, index: int, values: Any, sequences: Sequences) -> np.ndarray[Any, np.dtype[np.float32]]:
        count = len(sequences.response(index))
        narrow = str(getattr(values, "dtype", "float32")).removeprefix("torch.")
        if narrow not in ("float32", "float64"):
            raise EngineError(
                "bad_module_result",
                f"score(): sequence {index} has dtype {narrow}; allowed is float32, computed as float32",
            )
        array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
        if array.shape != (count,):
            raise EngineError(
                "bad_module_result",
                f"score(): sequence {index} has shape {list(array.shape)}; allowed is [{count}], one a response token",
            )
        return array.astype(np.float32)

    def perturb(self, ulps: int) -> Perturbation:
        live = self._live_weights()
        usable = [(n, t) for n, t in live or () if getattr(t, "ndim", 0) == 1 and n.endswith("norm.weight")]
        if not usable:
            raise EngineError(
                "unsupported_canary",
                "the module has no function weights(state) that hands out live tensors, so no canary can be planted; "
                "without one a comparison cannot tell a computed column from a copied one",
            )
        from ..ulp import add_ulps

        outside = [(name, tensor) for name, tensor in usable if "layers." not in name]
        name, tensor = (outside or usable)[-1]
        return add_ulps(name, tensor.detach(), ulps)

    def close(self) -> None:
        close: Callable[[Any], None] | None = getattr(self._module, "close", None)
        if close is not None:
            close(self._state)


ENGINE = PythonEngine


def _load_module(file: str | None) -> Any:
    if file is None or not os.path.isfile(file):
        raise EngineError("module_not_found", f"module {file!r} is no file; correct `module` of the side")
    spec = importlib.util.spec_from_file_location("bitgate_user_module", file)
    if spec is None or spec.loader is None:
        raise EngineError("module_not_found", f"module {file!r} is no Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickles look their own module up by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    missing = [name for name in REQUIRED if not callable(getattr(module, name, None))]
    if missing:
        raise EngineError(
            "bad_module",
            f"module {file}: it has no function {' and no function '.join(missing)}; it needs "
            "load(model_path, options) and score(state, sequences, mode), see docs/engines.md",
        )
    return module


def _backward(scored: Any) -> None:
    """A training forward is one whose logprobs still hang on the graph: the loss is built from them, and run back."""
    loose = [number for number, values in enumerate(scored) if not getattr(values, "requires_grad", False)]
    if loose:
        raise EngineError(
            "bad_module_result",
            f"score(mode='train_forward') must return torch tensors with a graph; entry {loose[0]} has none (detached, "
            "or computed under no_grad)",
        )
    loss = -sum(values.sum() for values in scored)
    loss.backward()


def _columns(scored: list[tuple[int, Any, int]], sequences: Sequences) -> dict[str, Any]:
    counts = [len(values) for _, values, _ in scored]
    starts = [len(sequences.prompt(i)) for i, _, _ in scored]
    total = sum(counts)
    return {
        "sequence": np.repeat(np.asarray([i for i, _, _ in scored], np.int64), counts),
        "position": _joined([np.arange(s, s + n) for s, n in zip(starts, counts, strict=True)], np.int64),
        "token_id": _joined([np.asarray(sequences.response(i)) for i, _, _ in scored], np.int64),
        "mask": np.ones(total, np.uint8),
        "logprob": _joined([values for _, values, _ in scored], np.float32),
        "phase": np.full(total, PREFILL, np.uint8),
        "batch": np.repeat(np.asarray([size for _, _, size in scored], np.int32), counts),
    }


def _joined(parts: list[Any], dtype: Any) -> Any:
    return np.concatenate([np.empty(0, dtype), *parts]).astype(dtype)


def _shape(value: Any) -> str:
    return f"{type(value).__name__} of length {len(value)}" if hasattr(value, "__len__") else type(value).__name__


def _digest(file: str) -> str:
    import hashlib

    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
