"""Hooks that hand tensors to the recorder as they pass an engine's modules; every one can be taken out again."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .recorder import Recorder
from .tap_experts import Sink

Undo = list[Callable[[], None]]
LAYER = re.compile(r"(?:^|\.)layers\.(\d+)(?:\.(.+))?$")
BEFORE, AFTER = -1, 1 << 20
"""`layer` of what comes before the first layer (embedding) and after the last (final norm, logits, logprob)."""


def first(value: Any) -> Any:
    return value[0] if isinstance(value, tuple | list) else value


def keys_of(batch: Any, sequences: Any, company: set[int]) -> Any:
    """int64 [rows, columns, 2]: (sequence, position) of each token of a batch; -1 for padding and for company."""
    keys = np.full((*batch.tokens.shape, 2), -1, np.int64)
    for place in batch.places:
        size = len(sequences.whole(place.sequence))
        if place.sequence not in company:
            keys[place.row, place.start : place.start + size, 0] = place.sequence
            keys[place.row, place.start : place.start + size, 1] = np.arange(size)
    return keys


class Taps:
    """Base of the engines' taps: `install` puts the hooks in, `remove` takes them out in reverse order."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._undo: Undo = []
        self._late: list[Callable[[], None]] = []

    def install(self) -> None:
        raise NotImplementedError

    def start(self) -> None:
        self.install()
        for late in self._late:
            late()
        self._late.clear()

    def remove(self) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def replace(self, owner: Any, name: str, value: Any) -> Any:
        """Sets an attribute until `remove`; returns what was there."""
        own = vars(owner).get(name, Taps) if hasattr(owner, "__dict__") else Taps
        before = getattr(owner, name)

        def undo() -> None:
            if own is Taps and not isinstance(owner, type):
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        object.__setattr__(owner, name, value) if isinstance(owner, torch.nn.Module) else setattr(owner, name, value)
        self._undo.append(undo)
        return before

    def before(self, module: torch.nn.Module, action: Callable[[tuple[Any, ...], dict[str, Any]], None]) -> None:
        def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            action(args, kwargs)

        self._undo.append(module.register_forward_pre_hook(hook, with_kwargs=True).remove)

    def after(self, module: torch.nn.Module, action: Callable[[Any], None]) -> None:
        def hook(_: Any, args: Any, output: Any) -> None:
            action(output)

        self._undo.append(module.register_forward_hook(hook).remove)

    def sink(self) -> Sink:
        """Where rows of experts go (tap_experts.py)."""
        return Sink(
            lambda layer, name, rows, raw: self.recorder.point(layer, name, rows, raw=raw), self.recorder.problems
        )

    def traced(self, module: torch.nn.Module, layer: int) -> None:
        """Operators of this module are noted when the target lies in `layer`."""
        stack: list[Any] = []

        def enter(_: Any, args: Any) -> None:
            tracer = self.recorder.open_trace(layer)
            stack.append(tracer)
            if tracer is not None:
                tracer.__enter__()

        def leave(_: Any, args: Any, output: Any) -> None:
            tracer = stack.pop()
            if tracer is not None:
                tracer.__exit__(None, None, None)

        # The first to enter and the last to leave: hooks of points run inside, so that their views are noted too.
        self._late.append(lambda: self._undo.append(module.register_forward_pre_hook(enter, prepend=True).remove))
        self._late.append(lambda: self._undo.append(module.register_forward_hook(leave).remove))

    @contextlib.contextmanager
    def tracing(self, layer: int) -> Iterator[None]:
        tracer = self.recorder.open_trace(layer)
        if tracer is None:
            yield
            return
        with tracer:
            yield

    def output(self, module: torch.nn.Module, layer: int, name: str, shape: Callable[[Any], Tensor] = first) -> None:
        self.after(module, lambda out: self.recorder.point(layer, name, shape(out), raw=first(out)))


def layers_of(model: torch.nn.Module) -> Iterator[tuple[int, str, torch.nn.Module]]:
    """(layer, name inside it, module) of everything under `….layers.N`; the layer itself has the name ''."""
    for name, module in model.named_modules():
        match = LAYER.search(name)
        if match:
            yield int(match[1]), match[2] or "", module
