"""Two programs of one region, and the report of what experiments on them showed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..oracle import UNIT
from ..program import Program, tensors_of
from ..rows import Shared
from ..wide import SAME

ROUNDED = 16.0
"""Units of rounding of an input."""


@dataclass
class Report:
    label: str = "unknown"
    mechanism: str = ""
    faulty: str | None = None
    leaf: dict[str, Any] = field(default_factory=dict)
    experiments: list[dict[str, str]] = field(default_factory=list)
    excluded: list[str] = field(default_factory=list)
    rounding: bool | None = None
    """In float64 both programs compute the same function; None where that could not be tried."""

    def tried(self, name: str, result: str) -> None:
        self.experiments.append({"experiment": name, "result": result[:300]})

    def is_(self, label: str, mechanism: str, faulty: str | None = None) -> bool:
        self.label, self.mechanism, self.faulty = label, mechanism[:400], faulty
        return True

    def excludes(self, label: str) -> bool:
        self.excluded.append(label)
        return False


@dataclass(frozen=True)
class Case:
    """Two programs of the same region; `same_side`: one engine under two conditions."""

    kind: str
    a: Program
    b: Program
    shared: Shared
    same_side: bool
    names: tuple[str, str] = ("a", "b")

    def outputs(self) -> tuple[Tensor, Tensor]:
        """The common rows of both outputs, as the engines had them."""
        a, b = (p.expected.reshape(p.expected.shape[0], -1) for p in (self.a, self.b))
        return a[self.shared.a], b[self.shared.b]

    def function_limit(self) -> float:
        """How far apart the two may be in float64 and still be one function.

        Where they read other points, one of these may be what the other computes on its way, rounded.
        """
        read = [_read(program) for program in (self.a, self.b)]
        if read[0].keys() == read[1].keys():
            return SAME
        return ROUNDED * max(UNIT.get(dtype, 2.0**-24) for dtypes in read for dtype in dtypes.values())

    def inputs(self, side: int) -> dict[str, Tensor]:
        program, rows = ((self.a, self.shared.a), (self.b, self.shared.b))[side]
        return {n: t.reshape(t.shape[0], -1)[rows] for n, t in program.canonical.items()}


def _read(program: Program) -> dict[str, torch.dtype]:
    """The points that its operators read, of those that it is given, and their dtypes."""
    used = {name for op in program.ops for name in tensors_of(op)} | {program.output}
    return {point: program.values[name].dtype for point, name in program.inputs.items() if name in used}
