"""Each program through its own operators, and each one's inputs through the other's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..program import Program
from ..rows import own_rows, rows_of, same_bits
from .case import Case, Report
from .memory import reads_fresh, repeatable, varying


def replays(case: Case, report: Report) -> bool:
    """Each program must give its own engine's bits; one that does not is incomplete, and shows nothing."""
    good = True
    for name, program in zip(case.names, (case.a, case.b), strict=True):
        result = attempt(program)
        own = torch.tensor(own_rows(program))
        canonical = rows_of(result, len(program.rows)) if isinstance(result, Tensor) else None
        wanted = program.expected.reshape(program.expected.shape[0], -1)
        same = canonical is not None and same_bits(canonical[own], wanted[own])
        report.tried(
            f"{name}: its own inputs through its own operators",
            "the engine's own bits"
            if same
            else f"not the engine's bits{'' if canonical is not None else ': ' + str(result)[:120]}",
        )
        if not same and canonical is not None and not repeatable(program, result):
            report.tried(f"{name}: the same inputs again", "other bits: it is not deterministic")
            return not varying(name, program, "the same operators on the same inputs gave other bits", report)
        if not same and reads_fresh(program):
            report.tried(f"{name}: fresh memory filled with zeros, then with NaN", "other bits")
            return not report.is_("uninitialised_read", "the output depends on memory that nobody wrote", name)
        good &= same
    if good:
        _cross(case, report)
    return good


def attempt(program: Program, overrides: Mapping[str, Tensor] | None = None) -> Any:
    try:
        return program.result(overrides)
    except (RuntimeError, ImportError, AttributeError, KeyError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def _cross(case: Case, report: Report) -> None:
    """A's captured inputs through B's operators, and the other way: the output must be the operator's."""
    for (name, giver, from_rows), (other, taker, to_rows) in (
        ((case.names[0], case.a, case.shared.a), (case.names[1], case.b, case.shared.b)),
        ((case.names[1], case.b, case.shared.b), (case.names[0], case.a, case.shared.a)),
    ):
        overrides = _transplanted(giver, from_rows, taker, to_rows)
        what = f"inputs of {name} through the operators of {other}"
        if overrides is None:
            report.tried(what, "not done: the two keep these inputs in layouts without a checked way over")
            continue
        result = rows_of(taker.result(overrides), len(taker.rows))
        wanted = taker.expected.reshape(taker.expected.shape[0], -1)[to_rows]
        same = result is not None and same_bits(result[to_rows], wanted)
        report.tried(what, f"{other}'s output" if same else f"another output than {other}'s")


def _transplanted(giver: Program, rows: Tensor, taker: Program, places: Tensor) -> dict[str, Tensor] | None:
    overrides: dict[str, Tensor] = {}
    for point, name in taker.inputs.items():
        value, given = taker.values[name], giver.canonical.get(point)
        flat = rows_of(value, len(taker.rows))
        if given is None or flat is None or value.dtype != given.dtype:
            return None
        width = given.reshape(given.shape[0], -1).shape[1]
        own = taker.canonical[point].reshape(taker.canonical[point].shape[0], -1)
        if flat.shape[1] != width or not same_bits(flat[places], own[places]):
            return None
        made = overrides.get(name, value).clone()
        view = made.reshape(flat.shape)
        view[places] = given.reshape(given.shape[0], -1)[rows]
        overrides[name] = view.reshape(value.shape)
    return overrides
