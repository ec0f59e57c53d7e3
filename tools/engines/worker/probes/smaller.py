"""A case in smaller sizes, while the same failure stays: fewer earlier rows (keys), heads, experts, inner sizes.

Unlike a row, a head or half of a sum cannot be left out without other values coming out. The failure is the same when
the class and the first operator that differs are: each smaller case is classified anew. Only regions of torch's own
operators are tried, since they refuse sizes that do not fit; other kernels may read beyond their memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .classify import classify
from .experiments.case import Case, Report
from .program import Op, Program
from .rows import Shared, rows_of, same_bits, shared_rows

SECONDS = 20.0
LEAST = 4
"""Sizes below stay: numbers of dimensions are written like them."""

Keep = Mapping[int, Tensor]
"""Size -> the places along every dimension of that size that are kept."""


def smaller(case: Case, report: Report, seconds: float = SECONDS) -> tuple[Case, list[str]]:
    """The smallest case found in so much time, and what was cut: `64 -> 32`."""
    cuts: list[str] = []
    if any(not op.name.startswith("aten.") for p in (case.a, case.b) for op in p.ops):
        return case, cuts
    until, again = time.monotonic() + seconds, True
    while again and time.monotonic() < until:
        again = False
        for keep in _proposals(case):
            made = _cut(case, keep) if time.monotonic() < until else None
            if made is not None and _same_failure(made, report):
                case, again = made, True
                cuts.append(", ".join(f"{size} -> {len(places)}" for size, places in keep.items()))
                break
    return case, cuts


def _same_failure(case: Case, report: Report) -> bool:
    a, b = case.outputs()
    if a.shape == b.shape and same_bits(a[case.shared.target][None], b[case.shared.target][None]):
        return False
    found = classify(case)
    return (found.label, found.leaf.get("first")) == (report.label, report.leaf.get("first"))


def _proposals(case: Case) -> Iterator[Keep]:
    """Largest first: the row's own past alone, its nearer half, used experts, half of the heads, half of any size."""
    yield from _past(case)
    yield from _experts(case)
    yield from _heads(case)
    sizes = _sizes(case.a) & _sizes(case.b) - {len(case.a.rows), len(case.b.rows)}
    for size in sorted(sizes, reverse=True):
        if size >= 2 * LEAST and size % 2 == 0:
            yield {size: torch.arange(size // 2)}
            yield {size: torch.arange(size // 2, size)}


def _past(case: Case) -> Iterator[Keep]:
    if case.a.rows != case.b.rows or len(case.a.rows) < 2:
        return
    rows = case.a.rows
    sequence, position = rows[int(case.shared.a[case.shared.target])]
    own = [n for n, key in enumerate(rows) if key[0] == sequence and key[1] <= position]
    if len(own) < len(rows):
        yield {len(rows): torch.tensor(own)}
    if len(own) > 1:
        yield {len(rows): torch.tensor(own[len(own) // 2 :])}


def _experts(case: Case) -> Iterator[Keep]:
    ids = case.a.values.get(next((n for p, n in case.a.inputs.items() if p.endswith("topk_ids")), ""))
    if case.kind != "experts" or ids is None or ids.is_floating_point():
        return
    used = torch.unique(ids)
    for size in sorted(_sizes(case.a) & _sizes(case.b)):
        if int(used.max()) < size and len(used) < size:
            yield {size: used}


def _heads(case: Case) -> Iterator[Keep]:
    """Views that part a dimension into heads: half of the heads of each such view, queries and keys together."""
    found = [_parted(program) for program in (case.a, case.b)]
    for size in sorted({size for _, size in found[0]} & {size for _, size in found[1]}):
        heads = {count for parted in found for count, of in parted if of == size and count % 2 == 0}
        keep: dict[int, Tensor] = {count: torch.arange(count // 2) for count in heads}
        keep |= {count * size: torch.arange(count * size // 2) for count in heads}
        if keep and len(case.a.rows) not in keep:
            yield keep


def _parted(program: Program) -> set[tuple[int, int]]:
    """(heads, size of one) of every view that has a known dimension in two."""
    sizes = _sizes(program)
    return {
        (left, right)
        for op in program.ops
        for arg in op.args
        if isinstance(arg, list) and all(type(item) is int for item in arg)
        for left, right in zip(arg, arg[1:], strict=False)
        if left > 1 and right > 1 and left * right in sizes
    }


def _sizes(program: Program) -> set[int]:
    return {int(size) for value in program.values.values() for size in value.shape if size >= LEAST}


def _cut(case: Case, keep: Keep) -> Case | None:
    try:
        a, b = _smaller_program(case.a, keep), _smaller_program(case.b, keep)
        sequence, position = case.a.rows[int(case.shared.a[case.shared.target])]
        shared: Shared = shared_rows(a, b, sequence, position)
    except (RuntimeError, IndexError, TypeError, ValueError, KeyError):
        return None
    return replace(case, a=a, b=b, shared=shared) if shared.target >= 0 else None


def _smaller_program(program: Program, keep: Keep) -> Program:
    count = len(program.rows)
    values = {name: _numbered(name, _picked(value, keep), program, keep) for name, value in program.values.items()}
    ops = [
        Op(op.name, _resized(op.args, keep), {k: _resized(v, keep) for k, v in op.kwargs.items()}, op.outs, op.writes)
        for op in program.ops
    ]
    rows = [program.rows[n] for n in keep[count].tolist()] if count in keep else program.rows
    canonical = {point: _picked(value, keep) for point, value in program.canonical.items()}
    made = replace(program, ops=ops, values=values, rows=rows, canonical=canonical)
    result = rows_of(made.result(), len(rows))
    if result is None or any(len(value) != len(rows) for value in canonical.values()):
        # Sequences beside each other: what was cut was the number of rows, and nothing has that size.
        raise ValueError("the rows that were kept are not the rows of what it gives")
    return replace(made, expected=result.clone())


def _picked(value: Tensor, keep: Keep) -> Tensor:
    for dim, size in enumerate(value.shape):
        if int(size) in keep:
            value = value.index_select(dim, keep[int(size)])
    return value


def _numbered(name: str, value: Tensor, program: Program, keep: Keep) -> Tensor:
    """Numbers of experts are numbers of those that are kept."""
    if not any(of == name and point.endswith("topk_ids") for point, of in program.inputs.items()):
        return value
    used = next((places for places in keep.values() if len(places) and bool(torch.isin(value, places).all())), None)
    return value if used is None else torch.searchsorted(used, value).to(value.dtype)


def _resized(value: Any, keep: Keep) -> Any:
    if isinstance(value, list):
        return [_resized(item, keep) for item in value]
    return len(keep[value]) if type(value) is int and value in keep else value
