"""A region of a trace: the operators between the tensors at its input points and the tensor at its output point."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .gpu import batch_invariant_mode, home
from .program import Op, Point, Program, tensors_of
from .rows import same_bits
from .setting import setting


@dataclass(frozen=True)
class Mark:
    """A tensor at a point: `name` is the engine's own, `shown` its canonical view [R, …], with their values then."""

    name: str
    shown: str
    at: int
    raw: Tensor
    canonical: Tensor
    keys: Any = None


@dataclass
class Trace:
    """What was noted: operators in order, constants by name, and the tensors that passed points.

    refused: what cannot be run again, and why. handlers: numbers that stand for packed weights, and their sizes.
    caches: constants that an engine's taps cut to what is read. alias: a view's name -> what it is a view of.
    """

    ops: list[Op] = field(default_factory=list)
    values: dict[str, Tensor] = field(default_factory=dict)
    marks: dict[Point, Mark] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    handlers: dict[str, list[int]] = field(default_factory=dict)
    caches: list[str] = field(default_factory=list)
    alias: dict[str, str] = field(default_factory=dict)

    def root(self, name: str) -> str:
        while self.alias.get(name, name) != name:
            name = self.alias[name]
        return name


def region(trace: Trace, inputs: Sequence[Point], output: Point, keys: Any) -> Program | None:
    """The operators from the marks of `inputs` (those that passed) to the mark of `output`, whose rows count.

    keys: of the forward's rows.
    """
    if output not in trace.marks:
        return None
    end = trace.marks[output]
    passed = {point: trace.marks[point] for point in inputs if point in trace.marks}
    given, root = dict(passed), trace.root(end.shown)
    ops, read, late = _backwards(trace, root, end.at, _stops(trace, given))
    if late:
        # One kernel wrote the output and this input (a residual sum and its norm): what it read is the input.
        given = {point: mark for point, mark in given.items() if trace.root(mark.name) not in late}
        ops, read, _ = _backwards(trace, root, end.at, _stops(trace, given))
    shown = end.shown if ops else _handed_on(trace, end, given.values())
    read += [] if any(shown in op.outs for op in ops) else [shown]
    values = {name: trace.values[name] for name in read if name in trace.values}
    values |= {mark.name: mark.raw for mark in given.values()}
    produced = {o for op in ops for o in op.outs if o is not None}
    notes = {
        "handlers": {n: v for n, v in trace.handlers.items() if n in values},
        "refused": {k: v for k, v in trace.refused.items() if k in values or any(k == op.name for op in ops)},
        "missing": sorted(name for name in read if name not in values and name not in produced),
        "gpu": sorted(name for name, value in values.items() if value.is_cuda),
        "batch_invariant": any(value.is_cuda for value in values.values()) and batch_invariant_mode(),
        "output": list(output),
        "caches": [name for name in trace.caches if name in values],
    }
    notes["setting"] = setting((op.name for op in ops), gpu=bool(notes["gpu"]))
    rows = keys if end.keys is None else end.keys
    names = {f"{layer}.{name}": mark.name for (layer, name), mark in given.items()}
    canonical = {f"{layer}.{name}": home(_for_rows(mark, keys, rows)) for (layer, name), mark in passed.items()}
    values = {name: home(value) for name, value in values.items()}
    return Program(ops, names, shown, values, home(end.canonical), rows.tolist(), notes, canonical)


def _stops(trace: Trace, given: Mapping[Point, Mark]) -> dict[str, int]:
    return {trace.root(mark.name): mark.at for mark in given.values()}


def _backwards(trace: Trace, root: str, end: int, stops: dict[str, int]) -> tuple[list[Op], list[str], set[str]]:
    """Ops that the output depends on, walking back from it; views of a wanted tensor belong to it.

    Also the names that they read from outside, and those stops that one of them made itself.
    """
    wanted = {root}
    late: set[str] = set()
    kept: list[Op] = []
    for number in range(end - 1, -1, -1):
        op = trace.ops[number]
        made = {trace.root(name) for name in op.outs if name is not None} | set(op.writes)
        live = {r for r in made & wanted if number >= stops.get(r, -1)}
        if not live:
            continue
        kept.append(op)
        late |= {r for r in made if number < stops.get(r, -1)}
        wanted |= {trace.root(name) for name in tensors_of(op)}
    kept.reverse()
    produced: set[str] = set()
    read: list[str] = []
    for op in kept:
        read += [name for name in tensors_of(op) if name not in produced and name not in read]
        produced |= {o for o in op.outs if o is not None}
    return kept, read, late


def _handed_on(trace: Trace, end: Mark, given: Iterable[Mark]) -> str:
    """The output's name where nothing computes it: that of the input that it is, if it is one seen otherwise."""
    root, held = trace.root(end.shown), end.raw.reshape(1, -1)
    views = [mark for mark in given if trace.root(mark.name) == root and same_bits(mark.raw.reshape(1, -1), held)]
    return views[0].name if views else end.shown


def _for_rows(mark: Mark, forward: Any, rows: Any) -> Tensor:
    """The mark's rows in the order of `rows`; all of them where one of these did not pass this point."""
    keys = forward if mark.keys is None else mark.keys
    if keys is rows:
        return mark.canonical
    at = {key: number for number, key in enumerate(map(tuple, keys.tolist())) if key[0] >= 0}
    wanted = [at.get(key, -1) for key in map(tuple, rows.tolist())]
    owned = [number >= 0 or key[0] < 0 for number, key in zip(wanted, rows.tolist(), strict=True)]
    return (
        mark.canonical[torch.tensor(wanted, device=mark.canonical.device).clamp(min=0)]
        if all(owned)
        else mark.canonical
    )
