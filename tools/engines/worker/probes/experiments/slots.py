"""The sum over a token's experts, whatever kernel computes it: one slot alone at a time, and the order of all.

A slot whose routing weight is zero adds nothing. Slots that are equal alone on both sides leave only their sum to
differ; which is added to which is told by FPRev's masks, put into the routing weights of experts made all the same.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from ..fingerprint import described, huge
from ..oracle import UNIT
from ..program import Program
from ..rows import rows_of, same_bits
from .case import Case, Report

FEWEST = 3
"""A sum of two has one order only."""
MOST = 16


def slots(case: Case, report: Report) -> bool:
    if case.kind != "experts":
        return False
    names = [_weights(program) for program in (case.a, case.b)]
    if names[0] is None or names[1] is None:
        return False
    count = int(case.a.values[names[0]].shape[-1])
    if not FEWEST <= count <= MOST or count != int(case.b.values[names[1]].shape[-1]):
        return False
    sides = [(case.a, names[0], case.shared.a), (case.b, names[1], case.shared.b)]
    alone = [_alone(*side) for side in sides]
    if alone[0] is None or alone[1] is None:
        return False
    same = [same_bits(*pair) for pair in zip(*alone, strict=True)]
    report.tried("each slot's expert alone, by its routing weight", f"{sum(same)} of {count} equal on both sides")
    if not all(same) or not _rounded(case, alone[0]):
        return False
    orders = [_order(program, weights, int(rows[case.shared.target])) for program, weights, rows in sides]
    for name, order in zip(case.names, orders, strict=True):
        if order is not None:
            report.tried(f"{name}: order of the sum over {count} slots", f"fingerprint {order['order']}")
    if orders[0] is None or orders[1] is None or orders[0]["order"] == orders[1]["order"]:
        return False
    return report.is_("reduction_order", f"the outputs of a token's {count} experts are added in another order")


def _weights(program: Program) -> str | None:
    name = next((n for point, n in program.inputs.items() if point.endswith("topk_weights")), None)
    value = program.values.get(name or "")
    held = value is not None and value.is_floating_point() and value.ndim == 2 and len(value) == len(program.rows)
    return name if held else None


def _alone(program: Program, name: str, rows: Tensor) -> list[Tensor] | None:
    """Each slot's part of the output: the weights of all others are zero."""
    found = []
    for slot in range(int(program.values[name].shape[-1])):
        given = torch.zeros_like(program.values[name])
        given[:, slot] = program.values[name][:, slot]
        made = rows_of(program.result({name: given}), len(program.rows))
        if made is None:
            return None
        found.append(made[rows])
    return found


def _rounded(case: Case, parts: list[Tensor]) -> bool:
    """Both outputs are the sum of the parts, but for the rounding of each addition."""
    wide = torch.stack([part.to(torch.float64) for part in parts])
    unit = UNIT.get(parts[0].dtype, 2.0**-24)
    bound = len(parts) * unit * wide.abs().sum(0) + 1e-30
    return all(bool(((made.to(torch.float64) - wide.sum(0)).abs() <= bound).all()) for made in case.outputs())


def _order(program: Program, name: str, row: int) -> dict[str, Any] | None:
    given = set(program.inputs.values())
    hidden = [n for n in given if program.values[n].is_floating_point() and n != name]
    tables = {n: _level(v) for n, v in program.values.items() if n not in given and v.is_floating_point()}
    same = {**tables, **{n: torch.ones_like(program.values[n]) for n in hidden}}
    like = program.values[name]

    def run(at: dict[int, float], rest: float) -> float:
        weights = torch.full_like(like, rest)
        for slot, value in at.items():
            weights[:, slot] = value
        made = rows_of(program.result({**same, name: weights}), len(program.rows))
        return float("nan") if made is None else float(made[row, 0])

    count = int(like.shape[-1])
    units = [run({slot: 1.0}, 0.0) for slot in range(count)]
    if len(set(units)) != 1 or not 0 < abs(units[0]) < float("inf"):
        # The experts could not be made alike: what is counted is not known.
        return None
    size = huge(torch.float16 if torch.float16 in {v.dtype for v in program.values.values()} else like.dtype)
    chosen = list(combinations(range(count), 2))
    counts = [run({i: size, j: -size}, 1.0) / units[0] for i, j in chosen]
    return described([round(c * 4) if abs(c) < 1 << 20 else -1 for c in counts], len(chosen))


def _level(table: Tensor) -> Tensor:
    """Every value the same, and a sum over a row of it one."""
    return torch.full_like(table, 1.0 / max(int(table.shape[-1]), 1))
