"""Does a program give the same bits again, and does it read memory that nobody wrote?"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from ..program import FRESH, Op, Program
from ..rows import NOBODY, rows_of, same_bits
from .case import Case, Report

REPEATS = 20
REPEAT_SECONDS = 5.0


def nondeterministic(case: Case, report: Report) -> bool:
    for name, program in zip(case.names, (case.a, case.b), strict=True):
        first, count, until = program.result(), 1, time.monotonic() + REPEAT_SECONDS
        while count < REPEATS and time.monotonic() < until:
            count += 1
            if not same_bits(first, program.result()):
                report.tried(f"{name}: the same inputs {count} times", "other bits: it is not deterministic")
                return varying(name, program, f"run {count} of the same operators gave other bits", report)
        report.tried(f"{name}: the same inputs {count} times", "the same bits")
    return report.excludes("nondeterminism")


def repeatable(program: Program, first: Tensor) -> bool:
    """The same bits every time; of a race between few, two runs in a row often are the same."""
    until = time.monotonic() + REPEAT_SECONDS
    for _ in range(REPEATS - 1):
        if not same_bits(first, program.result()):
            return False
        if time.monotonic() > until:
            break
    return True


def reads_fresh(program: Program) -> bool:
    if not any(op.name.split(".")[1] in FRESH for op in program.ops):
        return False
    try:
        return not same_bits(_poisoned(program, 0.0), _poisoned(program, float("nan")))
    except (RuntimeError, ImportError, AttributeError, KeyError, TypeError):
        return False


def varying(name: str, program: Program, said: str, report: Report) -> bool:
    """What varies may vary because fresh memory does: filled with one value, it would not."""
    fresh = any(op.name.split(".")[1] in FRESH for op in program.ops)
    filled = [_poisoned(program, 0.0) for _ in range(4)] if fresh else []
    if filled and all(same_bits(filled[0], other) for other in filled[1:]):
        report.tried(f"{name}: fresh memory filled with zeros, four times", "the same bits each time")
        return report.is_("uninitialised_read", "the output depends on memory that nobody wrote", name)
    return report.is_("nondeterminism", said, name)


def uninitialised(case: Case, report: Report) -> bool:
    for name, program, rows in ((case.names[0], case.a, case.shared.a), (case.names[1], case.b, case.shared.b)):
        plain = rows_of(program.result(), len(program.rows))
        for poison in (float("nan"), 1e30):
            result = rows_of(_poisoned(program, poison), len(program.rows))
            if plain is not None and result is not None and not same_bits(plain[rows], result[rows]):
                report.tried(f"{name}: fresh memory and padding rows filled with {poison}", "the output changes")
                return report.is_("uninitialised_read", "the output depends on memory that nobody wrote", name)
    report.tried("fresh memory and padding rows filled with NaN and with 1e30", "no output changes")
    return report.excludes("uninitialised_read")


def _poisoned(program: Program, poison: float) -> Any:
    nobody = [n for n, key in enumerate(program.rows) if key[0] == NOBODY]
    overrides: dict[str, Tensor] = {}
    for name in program.inputs.values():
        value = program.values[name]
        if nobody and value.is_floating_point() and value.ndim == 2 and value.shape[0] == len(program.rows):
            made = value.clone()
            made[torch.tensor(nobody)] = poison
            overrides[name] = made

    def poisoned(_: int, op: Op, env: dict[str, Any]) -> None:
        if op.name.split(".")[1] in FRESH:
            for out in op.outs:
                if out is not None and env[out].is_floating_point():
                    env[out].fill_(poison)

    return program.run(overrides, poisoned)[program.output]
