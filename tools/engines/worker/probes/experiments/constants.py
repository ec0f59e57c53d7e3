"""Numbers and words inside the operators: an epsilon, a limit, a scale, the name of a formula."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..program import Op, Program
from ..rows import rows_of, same_bits
from .case import Case, Report
from .replay import attempt

Place = tuple[int, int | str]
"""(operator, position or name of the argument)."""


def constants(case: Case, report: Report) -> bool:
    """The same operators with another constant: with the other side's, a side gives the other side's bits."""
    a, b = case.a.ops, case.b.ops
    if [op.name for op in a] != [op.name for op in b]:
        return False
    unlike = [
        (number, place)
        for number, (ours, theirs) in enumerate(zip(a, b, strict=True))
        for place in _places(ours, theirs)
        if _at(ours, place) != _at(theirs, place)
        and (_is_constant(_at(ours, place)) or _is_constant(_at(theirs, place)))
    ]
    if not unlike:
        return False
    number, place = unlike[0]
    said = f"{a[number].name} has {_at(a[number], place)!r} on {case.names[0]} and {_at(b[number], place)!r} on "
    said += case.names[1]
    result = rows_of(attempt(_with(case.a, case.b, unlike)), len(case.a.rows))
    equal = result is not None and same_bits(result[case.shared.a], case.outputs()[1])
    report.tried(
        f"constants of {case.names[1]} in the operators of {case.names[0]}", "equal" if equal else "other bits"
    )
    label = "post_processing" if case.kind == "logprob" else "semantic"
    return report.is_(label, said) if equal else False


def _places(ours: Op, theirs: Op) -> list[int | str]:
    return [*range(max(len(ours.args), len(theirs.args))), *dict.fromkeys((*ours.kwargs, *theirs.kwargs))]


def _at(op: Op, place: int | str) -> Any:
    if isinstance(place, str):
        return op.kwargs.get(place)
    return op.args[place] if place < len(op.args) else None


def _is_constant(value: Any) -> bool:
    """Integers are sizes and places, which go with the rows of a side."""
    return isinstance(value, float | str | bool)


def _with(program: Program, other: Program, unlike: list[Place]) -> Program:
    ops = list(program.ops)
    for number, place in unlike:
        op, value = ops[number], _at(other.ops[number], place)
        if isinstance(place, str):
            ops[number] = replace(op, kwargs={**op.kwargs, place: value})
        else:
            ops[number] = replace(op, args=[*op.args[:place], value, *op.args[place + 1 :]])
    return replace(program, ops=ops)
