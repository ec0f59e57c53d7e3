"""Taps of a user's module: what it hands over itself, and the modules of the model it names.

`watch(state, record)`, if the module has it, is called once before scoring and returns a function that undoes it;
inside, the user calls `record(layer, point, tensor)` wherever a tensor passes, or one of its methods for shards,
quantised rows and rows of experts (record.py). `model(state)`, if it has it, returns a
torch module: submodules with the usual names (`…layers.N.self_attn.q_proj`) become the points of the table, and every
other one without children becomes a point of its own name, with its inputs as `NAME.in0`, `NAME.in1`, ….

A tensor's leading sizes say which rows it has: all tokens of the group one after the other, or [sequences, longest]
padded on the right. Tensors of another shape are reported and not compared.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .record import Record
from .rows import UNSCORED
from .tap_experts import Sink, holds_experts, looped
from .tap_transformers import INPUTS, OUTPUTS
from .taps import AFTER, BEFORE, LAYER, Taps, first

HEADS = {"self_attn.q_norm": "q_norm", "self_attn.k_norm": "k_norm"}
NAMED_OUTPUTS = {
    "embed_tokens": (BEFORE, "embed"),
    "norm": (AFTER, "final_norm"),
    "lm_head": (AFTER, "logits"),
}


class PythonTaps(Taps):
    def __init__(self, recorder: Any, engine: Any, company: set[int]) -> None:
        super().__init__(recorder)
        self._engine, self._company = engine, company
        self._sizes: list[int] = []
        self._tracer: Any = None

    def install(self) -> None:
        module, state = self._engine._module, self._engine._state
        run = self._engine._score
        self.replace(self._engine, "_score", lambda group, *rest: self._score(run, group, *rest))
        watch, model = getattr(module, "watch", None), getattr(module, "model", None)
        if callable(watch):
            record = Record(self.recorder, self._record, lambda: sum(self._sizes))
            undo = watch(state, record)
            if callable(undo):
                self._undo.append(undo)
        named = model(state) if callable(model) else None
        if isinstance(named, torch.nn.Module):
            for name, part in named.named_modules():
                self._module(name, part)

    def _module(self, name: str, part: torch.nn.Module) -> None:
        match = LAYER.search(name)
        layer, own = (int(match[1]), match[2] or "") if match else (AFTER, name.rpartition(".")[2])
        if match is None and own in NAMED_OUTPUTS:
            at, point = NAMED_OUTPUTS[own]
            self.after(part, lambda out: self._record(at, point, first(out)))
            return
        if match is not None and holds_experts(own, part):
            self.replace(part, "forward", looped(self.sink(), layer, part.forward, part.num_experts))
            return
        if match is not None and own == "mlp.gate" and "Router" in type(part).__name__:
            self.after(part, lambda out: self._routed(layer, out))
            return
        made = OUTPUTS.get(own, HEADS.get(own))
        if match is not None and (own in INPUTS or made is not None):
            if own in INPUTS:
                self.before(part, lambda a, k: self._record(layer, INPUTS[own], a[0]))
            if made is not None:
                self.after(part, lambda out: self._record(layer, made, first(out)))
            return
        if name and not list(part.children()):
            self.before(part, lambda a, k: self._inputs(layer, own, (*a, *k.values())))
            self.after(part, lambda out: self._record(layer, own, first(out)))

    def sink(self) -> Sink:
        return Sink(self._record, self.recorder.problems)

    def _routed(self, layer: int, out: tuple[Tensor, Tensor, Tensor]) -> None:
        logits, weights, ids = out
        self._record(layer, "router_logits", logits)
        self._record(layer, "topk_ids", ids.to(torch.int64), ids)
        self._record(layer, "topk_weights", weights.to(torch.float32), weights)

    def _inputs(self, layer: int, name: str, args: tuple[Any, ...]) -> None:
        """By place, and then those given by name: an input that is not looked at counts as equal."""
        for number, value in enumerate(args):
            if isinstance(value, Tensor):
                self._record(layer, f"{name}.in{number}", value)

    def _record(self, layer: int, point: str, tensor: Tensor, raw: Tensor | None = None) -> None:
        rows = self._rows(tensor)
        if rows is None:
            self.recorder.problems[f"{layer}.{point}"] = f"{tuple(tensor.shape)} has no leading sizes that are the rows"
            return
        self.recorder.point(layer, point, rows, raw=tensor if raw is None else raw)

    def _rows(self, tensor: Tensor) -> Tensor | None:
        """The tensor as [rows of the group's keys, rest]."""
        total, count, longest = sum(self._sizes), len(self._sizes), max(self._sizes, default=0)
        if tensor.ndim and tensor.shape[0] == total:
            return tensor
        if tensor.ndim and tensor.shape[0] == count * longest:
            tensor = tensor.unflatten(0, (count, longest))
        if tensor.ndim > 1 and tensor.shape[0] == count and tensor.shape[1] == longest:
            if count == 1:
                return tensor.reshape(longest, *tensor.shape[2:])
            kept = torch.cat([torch.arange(n) + i * longest for i, n in enumerate(self._sizes)])
            return tensor.reshape(count * longest, *tensor.shape[2:])[kept.to(tensor.device)]
        return None

    def _score(self, run: Any, group: list[int], sequences: Any, mode: str) -> Any:
        self._sizes = [len(sequences.whole(i)) for i in group]
        parts = []
        for index, size in zip(group, self._sizes, strict=True):
            own = np.full((size, 2), -1, np.int64)
            if index not in self._company:
                own[:, 0], own[:, 1] = index, np.arange(size)
            parts.append(own)
        self.recorder.begin(np.concatenate(parts))
        tokens = torch.tensor([token for i in group for token in sequences.whole(i)])
        self.recorder.point(BEFORE, "token_ids", tokens)
        self.recorder.point(BEFORE, "positions", torch.cat([torch.arange(size) for size in self._sizes]))
        target = self.recorder.target
        # What lies in which layer is the user's own affair: his whole forward is noted.
        tracer = None if target is None else self.recorder.open_trace(target.layers[0])
        if tracer is None:
            return run(group, sequences, mode)
        with tracer:
            scored = run(group, sequences, mode)
            if target is not None and target.output == (AFTER, "logprob"):
                self._scored(group, sequences, scored)
            return scored

    def _scored(self, group: list[int], sequences: Any, scored: list[Any]) -> None:
        """The logprobs as rows of the forward, each where its token is predicted; the other rows are nobody's."""
        parts, keys, at = [], self.recorder.keys.copy(), 0
        for index, size, values in zip(group, self._sizes, scored, strict=True):
            start = len(sequences.prompt(index)) - 1
            parts += [values.new_zeros(start), values, values.new_zeros(1)]
            keys[at : at + start], keys[at + size - 1] = UNSCORED, UNSCORED
            at += size
        rows = torch.cat(parts)[:, None]
        self.recorder.point(AFTER, "logprob", rows, raw=rows, keys=keys)
