"""Two ways to compute one operator, traced as the recorder does, and what the product's experiments say of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bitgate.tools.engines.worker.probes.classify import classify
from bitgate.tools.engines.worker.probes.experiments.case import Case
from bitgate.tools.engines.worker.probes.program import Program
from bitgate.tools.engines.worker.probes.rows import Shared
from bitgate.tools.engines.worker.probes.tracer import Tracer

ROWS = 12
Run = Callable[..., Any]


def traced(run: Run, given: dict[str, Any], constants: tuple[Any, ...], keys: Any = None) -> Program:
    tracer = Tracer()
    points = [(0, name) for name in given]
    with torch.no_grad(), tracer:
        for point, value in zip(points, given.values(), strict=True):
            tracer.mark(point, value, value)
        made = run(*given.values(), *constants)
        tracer.mark((0, "out"), made, made)
    keys = [[0, n] for n in range(ROWS)] if keys is None else keys
    program = tracer.program(points, (0, "out"), torch.tensor(keys).numpy())
    assert program is not None
    return program


def said(
    kind: str, a: Run, b: Run, given: dict[str, Any], *constants: Any, other: tuple[Any, ...] | None = None,
    same_side: bool = False,
) -> Any:  # fmt: skip
    programs = traced(a, given, constants), traced(b, given, constants if other is None else other)
    index = torch.arange(ROWS)
    report = classify(Case(kind, *programs, Shared(index, index, 0), same_side))
    return {"class": report.label, "mechanism": report.mechanism, "tried": report.experiments}


def in_company(kind: str, run: Run, given: dict[str, Any]) -> Any:
    """The first half of the rows alone against both halves together, each a sequence."""
    half = ROWS // 2
    own = [[0, n] for n in range(half)]
    alone = traced(run, {name: value[:half].clone() for name, value in given.items()}, (), own)
    together = traced(run, given, (), own + [[1, n] for n in range(half)])
    index = torch.arange(half)
    report = classify(Case(kind, alone, together, Shared(index, index, half - 1), True))
    return {"class": report.label, "mechanism": report.mechanism, "tried": report.experiments}
