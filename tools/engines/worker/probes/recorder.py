"""Collects what passes semantic points during a step: a digest a row, and, around one layer, the operators."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .hashed import Keys, Owned, Series, save_hashes
from .hashing import row_sums, salt_of
from .lean import lean
from .program import Program
from .stored import save_programs
from .tracer import Tracer


@dataclass(frozen=True)
class Target:
    """What is recorded as operators: the forward that computes (sequence, position), from `inputs` to `output`."""

    layers: tuple[int, ...]
    inputs: tuple[tuple[int, str], ...]
    output: tuple[int, str]
    sequence: int
    position: int


class Recorder:
    """`begin(keys)` opens a forward; `point` is called by the taps as tensors pass."""

    def __init__(self, target: Target | None = None) -> None:
        self.series: dict[tuple[int, str], Series] = {}
        self.problems: dict[str, str] = {}
        self.replicas: dict[str, str] = {}
        """Points whose ranks should hold the same bits and do not: a finding of its own."""
        self.forwards = 0
        self.target = target
        self.programs: list[Program] = []
        self.prepare: Callable[[Tracer], None] | None = None
        self._keys: Keys = np.empty((0, 2), np.int64)
        self._own = Owned.of(self._keys)
        self._tracer: Tracer | None = None
        self._done = False

    @property
    def keys(self) -> Keys:
        return self._keys

    def begin(self, keys: Keys) -> None:
        self.close_trace()
        self._keys = keys
        self._own = Owned.of(keys)
        self.forwards += 1
        wanted = self.target
        if wanted is not None and not self._done:
            hit = (keys[:, 0] == wanted.sequence) & (keys[:, 1] == wanted.position)
            if bool(hit.any()):
                self._tracer = Tracer()
                if self.prepare is not None:
                    self.prepare(self._tracer)

    def open_trace(self, layer: int) -> Tracer | None:
        """The tracer to run `layer` under, if that is where the target lies."""
        tracer, wanted = self._tracer, self.target
        if tracer is None or wanted is None or layer not in wanted.layers or tracer.active:
            return None
        return tracer

    def close_trace(self) -> None:
        tracer, wanted = self._tracer, self.target
        if tracer is None or wanted is None:
            return
        self._tracer = None
        program = tracer.program(wanted.inputs, wanted.output, self._keys)
        if program is None:
            self.problems["program"] = f"{wanted.output[1]} of layer {wanted.output[0]} did not pass while traced"
            return
        self._done = True
        self.programs.append(lean(program, wanted.sequence, wanted.position))

    def point(self, layer: int, name: str, tensor: Tensor, *, raw: Tensor | None = None, keys: Keys = None) -> None:
        """`tensor`: [R, ...], R rows in the order of the forward's keys (or of `keys`); further rows are padding.

        raw: the tensor object the engine itself holds, where `tensor` is a canonical view of it.
        """
        with torch.no_grad(), _unwatched(self._tracer):
            self._point(layer, name, tensor, self._keys if keys is None else keys, _whole(tensor, raw))
        self._mark((layer, name), tensor if raw is None else raw, tensor, self._keys if keys is None else keys)

    def _mark(self, point: tuple[int, str], raw: Tensor, tensor: Tensor, keys: Keys) -> None:
        """The head runs request by request: of its calls, the one with the wanted row counts."""
        tracer, wanted = self._tracer, self.target
        if tracer is None or wanted is None or point not in (*wanted.inputs, wanted.output):
            return
        if bool(((keys[:, 0] == wanted.sequence) & (keys[:, 1] == wanted.position)).any()):
            tracer.mark(point, raw, tensor, keys)

    def _point(self, layer: int, name: str, tensor: Tensor, keys: Keys, whole: int) -> None:
        if self.target is not None:
            return
        count = len(keys)
        if tensor.shape[0] < count:
            self.problems[f"{layer}.{name}"] = f"{tuple(tensor.shape)} has fewer rows than the {count} of the forward"
            return
        own = self._own if keys is self._keys else Owned.of(keys)
        rows = tensor[:count]
        if len(own.rows) != count:
            rows = rows[torch.from_numpy(own.rows).to(rows.device)]
        series = self.series.get((layer, name))
        if series is None:
            width = math.prod(rows.shape[1:])
            series = Series(salt_of(rows), str(rows.dtype).removeprefix("torch."), width, whole)
            self.series[layer, name] = series
        if len(own.rows):
            series.keys.append(own.keys)
            series.sums.append(row_sums(rows))

    def save(self, folder: str, checkpoint: str) -> dict[str, Any]:
        """Writes hashes (one file) and programs (if any); returns what was seen, for the step's info.

        checkpoint: the model's folder, in which weights are looked for before they are written.
        """
        self.close_trace()
        os.makedirs(folder, exist_ok=True)
        if self.target is not None:
            save_programs(folder, self.programs, checkpoint)
            return {"programs": len(self.programs), "problems": self.problems}
        about = {"problems": self.problems, "replicas": self.replicas, "forwards": self.forwards}
        return {**save_hashes(folder, self.series, about), **about}


def _whole(tensor: Tensor, raw: Tensor | None) -> int:
    if raw is None or raw.ndim < 2 or raw.shape[0] != tensor.shape[0] or raw.numel() <= tensor.numel():
        return 0
    return int(raw.numel() // raw.shape[0])


class _unwatched:
    """Our own operators are not the engine's: they stay out of the trace."""

    def __init__(self, tracer: Tracer | None) -> None:
        self._tracer = tracer

    def __enter__(self) -> None:
        if self._tracer is not None:
            self._tracer.paused += 1

    def __exit__(self, *_: object) -> None:
        if self._tracer is not None:
            self._tracer.paused -= 1
