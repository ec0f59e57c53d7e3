"""Accumulation orders of sums that no single operator shows: over rows, between a square or an exponential and what
reads their sum, and inside a log-sum-exp.

The masks are those of fingerprint.py where signed values can be put into the sum. The terms of a log-sum-exp are all
positive: there one term is 1 and the others lie below half of its last place, so that what is added to the large term
one by one is lost, and what is added up before is counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor

from .fingerprint import described, huge, pairs
from .program import Op, Program
from .rows import rows_of, same_bits

PROBES = 192
ROWS = 256
PART = 2.0**-23
UNIT = -17.125
"""exp of it is 0.306 of the last place of 1 in float32: one is lost, two together are not. Exact in bfloat16."""
NOTHING = -200.0
"""exp of it is zero in float32, and no infinity for a kernel to trip over."""

Order = dict[str, Any]


def inner_orders(program: Program, row: int) -> Order | None:
    """The first of these that the program shows to be such a sum; None when it is none of them."""
    for find in (between, over_rows, of_exponentials):
        try:
            found = find(program, row)
        except (RuntimeError, IndexError, TypeError, ValueError, KeyError, AttributeError):
            continue
        if found is not None:
            return {**found, "probed": find.__name__, "whole": True}
    return None


# --- from the squares (or exponentials) of a row to their total ------------------------------------------------------


def between(program: Program, row: int) -> Order | None:
    """The sum over a row of what one square or exponential gives, through however many operators it goes."""
    if any(v.dtype == torch.float16 for v in program.values.values()):
        # Nothing that float16 holds swallows a one.
        return None
    makers = [number for number, op in enumerate(program.ops) if _makes_terms(op)]
    if len(makers) != 1:
        return None
    maker, count = makers[0], len(program.rows)
    ones, twos = _totals(program, maker, row, lambda t: t.fill_(1)), _totals(program, maker, row, lambda t: t.fill_(2))
    width = _width(program, maker, count)
    linear = [n for n, v in ones.items() if _near(twos[n], 2 * v) and (_near(v, width) or _near(v, 1))]
    if not linear or width < 3:
        return None
    at, scale = linear[-1], 1.0 if _near(ones[linear[-1]], width) else float(width)
    counts = []
    chosen = pairs(width, PROBES)
    for i, j in chosen:
        value = _totals(program, maker, row, _masked(i, j))[at] * scale
        counts.append(_counted(value))
    return {"operator": f"the sum after {program.ops[maker].name}", "rows": count, **described(counts, len(chosen))}


def _makes_terms(op: Op) -> bool:
    if op.name == "aten.pow.Tensor_Scalar":
        return bool(op.args[1] == 2)
    if op.name == "aten.mul.Tensor":
        return bool(op.args[0] == op.args[1])
    return op.name in ("aten.exp.default", "aten.square.default")


def _width(program: Program, maker: int, count: int) -> int:
    seen: list[int] = []

    def hook(number: int, op: Op, env: dict[str, Any]) -> None:
        if number == maker:
            value = rows_of(env[op.outs[0] or ""], count)
            seen.append(0 if value is None else int(value.shape[1]))

    program.run(hook=hook)
    return seen[0]


def _totals(program: Program, maker: int, row: int, fill: Callable[[Tensor], Any]) -> dict[int, float]:
    """Operator -> the one value of the row that it gives, with the terms replaced."""
    count, found = len(program.rows), dict[int, float]()

    def hook(number: int, op: Op, env: dict[str, Any]) -> None:
        name = op.outs[0] if len(op.outs) == 1 else None
        if name is None or number < maker:
            return
        if number == maker:
            env[name] = torch.empty_like(env[name])
            fill(env[name])
            return
        value = rows_of(env[name], count)
        if value is not None and value.shape[1] == 1:
            found[number] = float(value[row, 0])

    program.run(hook=hook)
    return found


def _masked(i: int, j: int) -> Callable[[Tensor], Any]:
    def fill(terms: Tensor) -> None:
        terms.fill_(1)
        flat = terms.view(terms.shape[0], -1) if terms.ndim == 2 else terms.view(-1, terms.shape[-1])
        flat[:, i], flat[:, j] = huge(terms.dtype), -huge(terms.dtype)

    return fill


def _counted(value: float) -> int:
    return round(value * 4) if value == value and abs(value) < 1 << 30 else -1


def _near(value: float, wanted: float) -> bool:
    return abs(value - wanted) <= 1e-3 * max(abs(wanted), 1.0)


# --- over the rows of a sequence -------------------------------------------------------------------------------------


def over_rows(program: Program, row: int) -> Order | None:
    """A region that adds up rows of one input once the others are neutral: attention over its keys, a scan, a
    convolution. Neutral is what makes the row's output the plain sum, or the mean, of the rows that it sees."""
    count = len(program.rows)
    floats = [n for n in dict.fromkeys(program.inputs.values()) if _is_rows(program.values[n], count)]
    narrow = any(program.values[n].dtype == torch.float16 for n in floats)
    if not floats or narrow or count < 3 or count > ROWS or not _mixes_rows(program, floats, row):
        return None
    for summed in reversed(floats):
        for neutral in _neutrals(program, [n for n in floats if n != summed]):
            run = _run_rows(program, summed, neutral, row)
            seen = _visible(program, run, row)
            if len(seen) < 3:
                continue
            chosen = [(seen[i], seen[j]) for i, j in pairs(len(seen), PROBES)]
            scale = 1.0 if _near(run({}), len(seen)) else float(len(seen))
            dtype = program.values[summed].dtype
            counts = [_counted(run({i: huge(dtype), j: -huge(dtype)}) * scale) for i, j in chosen]
            if max(counts) > 4 * len(seen) or min(counts) < 0:
                continue
            return {"operator": "the sum over rows", "rows": count, **described(counts, len(chosen))}
    return None


def _mixes_rows(program: Program, floats: list[str], row: int) -> bool:
    """Whether the row's output changes with other rows of its sequence."""
    count = len(program.rows)
    others = torch.tensor([n for n, key in enumerate(program.rows) if n != row and key[0] == program.rows[row][0]])
    changed = {}
    for name in floats if len(others) else ():
        flat = program.values[name].reshape(count, -1).clone()
        flat[others] = flat[others] * 1.5 + 0.25
        changed[name] = flat.reshape(program.values[name].shape)
    plain, other = (rows_of(program.result(given), count) for given in ({}, changed))
    return bool(changed) and plain is not None and other is not None and not same_bits(plain[row], other[row])


def _is_rows(value: Tensor, count: int) -> bool:
    return value.is_floating_point() and rows_of(value, count) is not None


def _neutrals(program: Program, others: list[str]) -> Iterator[dict[str, Tensor]]:
    given = set(program.inputs.values())
    tables = [
        n for n, v in program.values.items() if n not in given and v.is_floating_point() and 0 < v.numel() < 1 << 16
    ]
    for values in product((0.0, 1.0), repeat=len(others)):
        base = {n: torch.full_like(program.values[n], v) for n, v in zip(others, values, strict=True)}
        yield base
        if tables:
            yield base | {n: torch.ones_like(program.values[n]) for n in tables}


def _run_rows(
    program: Program, summed: str, neutral: dict[str, Tensor], row: int
) -> Callable[[dict[int, float]], float]:
    count = len(program.rows)

    def run(at: dict[int, float], rest: float = 1.0) -> float:
        value = torch.full_like(program.values[summed], rest)
        flat = value.reshape(count, -1)
        for place, number in at.items():
            flat[place] = number
        result = rows_of(program.result({**neutral, summed: flat.reshape(value.shape)}), count)
        return float("nan") if result is None else float(result[row, 0])

    return run


def _visible(program: Program, run: Callable[..., float], row: int) -> list[int]:
    """The rows that count: with each at one alone, the row must be 1 or 1/n; with all at one, n or 1."""
    same = [n for n, key in enumerate(program.rows) if key[0] == program.rows[row][0]]
    whole = run({})
    if whole != whole or not any(_near(whole, n) for n in range(1, len(same) + 1)):
        return []
    alone = {n: run({n: 1.0}, 0.0) for n in same}
    seen = [n for n, value in alone.items() if value != 0]
    share = 1.0 if _near(whole, len(seen)) else 1.0 / max(len(seen), 1)
    fits = _near(whole, len(seen) * share) and all(abs(alone[n] - share) < 1e-2 * share for n in seen)
    return seen if fits else []


# --- inside a log-sum-exp --------------------------------------------------------------------------------------------


def of_exponentials(program: Program, row: int) -> Order | None:
    """A region that gives logit - log(sum(exp(logits))) of one column."""
    count, names = len(program.rows), list(dict.fromkeys(program.inputs.values()))
    if len(names) != 1 or not _is_rows(program.values[names[0]], count):
        return None
    like = program.values[names[0]]
    width = like.reshape(count, -1).shape[1]

    def run(logits: Tensor) -> float:
        made = logits.to(like.dtype).expand(count, width).reshape(like.shape).clone()
        result = rows_of(program.result({names[0]: made}), count)
        return float("nan") if result is None or result.shape[1] != 1 else float(result[row, 0])

    token = _token(run, width)
    if width < 8 or token is None:
        return None
    chosen = list(_windows(width, token))[:PROBES]
    counts = []
    for places in chosen:
        logits = torch.full((width,), NOTHING)
        logits[token] = 0.0
        logits[torch.tensor(places)] = UNIT
        counts.append(_counted(-run(logits) / PART / 4))
    return {"operator": "the log-sum-exp", "rows": count, **described(counts, len(chosen))}


def _token(run: Callable[[Tensor], float], width: int) -> int | None:
    """The column whose logit the region reports; None when it does not compute a log-softmax."""
    if not _near(run(torch.zeros(width)), -math.log(width)):
        return None
    step = 0.0
    found = 0
    for bit in range(width.bit_length()):
        logits = torch.tensor([8.0 * ((n >> bit) & 1) for n in range(width)])
        step = run(logits) + float(logits.to(torch.float64).logsumexp(0))
        found |= int(step > 4.0) << bit
    return found if found < width else None


def _windows(width: int, token: int) -> Iterator[list[int]]:
    """Neighbours, places half and a quarter of the width apart, and runs of eight."""
    places = [n for n in range(width) if n != token]
    stride = max(1, len(places) // 48)
    for start in range(0, len(places), stride):
        for apart in (1, len(places) // 4, len(places) // 2):
            yield [places[start], places[(start + apart) % len(places)]]
        yield places[start : start + 8]
