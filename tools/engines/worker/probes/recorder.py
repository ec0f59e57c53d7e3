"""Collects what passes semantic points during a step: a digest a row, and, around one layer, the operators."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import Tensor

from .hashing import digests, row_sums, salt_of
from .program import Program
from .stored import save_programs
from .tracer import Tracer

Keys = Any
"""int64 [R, 2]: (sequence, position) of each row of a forward; -1 for rows of nobody we asked for."""

Fault = Callable[[int, str, Tensor], "Tensor | None"]


@dataclass
class Series:
    """One point of one layer, forward after forward."""

    keys: list[Any] = field(default_factory=list)
    sums: list[Tensor] = field(default_factory=list)
    salt: int = 0
    dtype: str = ""
    width: int = 0
    node: str = ""


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
        self.order: list[tuple[int, str]] = []
        self.problems: dict[str, str] = {}
        self.forwards = 0
        self.target = target
        self.programs: list[Program] = []
        self.prepare: Callable[[Tracer], None] | None = None
        self._keys: Keys = np.empty((0, 2), np.int64)
        self._tracer: Tracer | None = None
        self._done = False
        self._last: tuple[Any, Any, Any] = (None, None, None)

    @property
    def keys(self) -> Keys:
        return self._keys

    def begin(self, keys: Keys) -> None:
        self.close_trace()
        self._keys = keys
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
        self.programs.append(program)

    def point(self, layer: int, name: str, tensor: Tensor, *, raw: Tensor | None = None, keys: Keys = None) -> None:
        """`tensor`: [R, ...], R rows in the order of the forward's keys (or of `keys`); further rows are padding.

        raw: the tensor object the engine itself holds, where `tensor` is a canonical view of it.
        """
        with torch.no_grad(), _unwatched(self._tracer):
            self._point(layer, name, tensor, self._keys if keys is None else keys)
        wanted = self.target
        if self._tracer is not None and wanted is not None and ((layer, name) in (*wanted.inputs, wanted.output)):
            self._tracer.mark((layer, name), tensor if raw is None else raw, tensor)

    def _point(self, layer: int, name: str, tensor: Tensor, keys: Keys) -> None:
        if self.target is not None:
            return
        count = len(keys)
        if tensor.shape[0] < count:
            self.problems[f"{layer}.{name}"] = f"{tuple(tensor.shape)} has fewer rows than the {count} of the forward"
            return
        own = np.flatnonzero(keys[:, 0] >= 0)
        rows = tensor[:count]
        if len(own) != count:
            rows = rows[torch.from_numpy(own).to(rows.device)]
        series = self.series.get((layer, name))
        if series is None:
            series = self.series[layer, name] = Series(salt=salt_of(rows))
            series.dtype, series.width = str(rows.dtype).removeprefix("torch."), rows[0].numel() if len(rows) else 0
            self.order.append((layer, name))
        if len(own) == 0:
            return
        series.keys.append(keys[own])
        series.sums.append(self._sums(tensor, rows))

    def _sums(self, tensor: Tensor, rows: Tensor) -> Tensor:
        """One tensor is often two points (one layer gives, the next takes it): its sums are kept until the next."""
        mark = (tensor.data_ptr(), tuple(rows.shape), tensor.stride(), tensor.dtype, _version(tensor))
        if mark[-1] is None or mark != self._last[0] or self._last[1] is not tensor:
            self._last = (mark, tensor, row_sums(rows))
        return self._last[2]

    def save(self, folder: str) -> dict[str, Any]:
        """Writes hashes (one file) and programs (if any); returns what was seen, for the step's info."""
        self.close_trace()
        os.makedirs(folder, exist_ok=True)
        if self.target is not None:
            save_programs(folder, self.programs)
            return {"programs": len(self.programs), "problems": self.problems}
        arrays: dict[str, Any] = {}
        index = []
        repeated = unequal = 0
        for number, key in enumerate(self.order):
            series = self.series[key]
            if not series.keys:
                continue
            keys = np.concatenate(series.keys)
            sums = torch.cat(series.sums).cpu().numpy()
            found = digests(sums, keys, series.salt)
            kept, again, differing = first_of_each(keys, found)
            repeated, unequal = repeated + again, unequal + differing
            arrays[f"{number}.keys"] = np.ascontiguousarray(keys[kept])
            arrays[f"{number}.digest"] = np.ascontiguousarray(found[kept])
            index.append({"layer": key[0], "point": key[1], "dtype": series.dtype, "width": series.width, "n": number})
        save_file(shared_keys(arrays), os.path.join(folder, "hashes.safetensors"))
        body = {"points": index, "problems": self.problems, "forwards": self.forwards}
        with open(os.path.join(folder, "points.json"), "w", encoding="utf-8") as file:
            json.dump(body, file, allow_nan=False)
        return {
            "points": len(index),
            "forwards": self.forwards,
            "recomputed_rows": repeated,
            "recomputed_rows_that_differ": unequal,
            "problems": self.problems,
        }


def _version(tensor: Tensor) -> int | None:
    """Counts writes into a tensor; those made under inference mode have none."""
    return None if tensor.is_inference() else tensor._version


def first_of_each(keys: Any, found: Any) -> tuple[Any, int, int]:
    """Index of each key's first row; how many came again (recomputed after preemption), how many of those differ."""
    _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    again = len(keys) - len(first)
    differing = int((found != found[first[inverse.reshape(-1)]]).any(axis=1).sum()) if again else 0
    return np.sort(first), again, differing


def shared_keys(arrays: dict[str, Any]) -> dict[str, Any]:
    """Points of one step mostly have the same rows: their keys are stored once."""
    stored: dict[bytes, str] = {}
    out: dict[str, Any] = {}
    links: dict[str, int] = {}
    for name, array in arrays.items():
        if not name.endswith(".keys"):
            out[name] = array
            continue
        owner = stored.setdefault(array.tobytes(), name)
        if owner == name:
            out[name] = array
        links[name] = int(owner.split(".")[0])
    order = sorted(int(name.split(".")[0]) for name in links)
    out["links"] = np.asarray([[n, links[f"{n}.keys"]] for n in order], np.int64).reshape(-1, 2)
    return out


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
