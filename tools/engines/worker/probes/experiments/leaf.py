"""The operator inside the region: the first whose row differs although all before it agree."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..gpu import home
from ..program import Op, Program, tensors_of
from ..rows import differing, rows_of
from ..toggles import operators
from .case import Case, Report


def leaf(case: Case, report: Report) -> None:
    """The operator inside the region: the first whose row differs although all before it agree."""
    a, b = operators(case.a), operators(case.b)
    names = [op.name for _, op in a], [op.name for _, op in b]
    report.leaf = {case.names[0]: _short(names[0]), case.names[1]: _short(names[1])}
    if [plain_name(n) for n in names[0]] != [plain_name(n) for n in names[1]]:
        return
    seen_a, seen_b = _row_values(case.a, case.shared.a), _row_values(case.b, case.shared.b)
    for (i, op), (j, _) in zip(a, b, strict=True):
        if i not in seen_a or j not in seen_b:
            continue
        rows = differing(seen_a[i], seen_b[j])
        if bool(rows.any()):
            report.leaf["first"] = op.name
            report.leaf["rows"] = f"{int(rows.sum())} of {len(rows)}"
            return


def _made(op: Op, program: Program) -> list[str]:
    """What an operator makes. One that only writes names memory, of which the program may know a view alone."""
    made = [name for name in op.outs if name is not None]
    if made or not op.writes:
        return made
    given = tensors_of(op)
    return [*(name for name in given if name == program.output), *op.writes, *given]


def plain_name(name: str) -> str:
    """Casts are named by how they were reached (`to.dtype` above autograd, `_to_copy` below)."""
    return "cast" if name in ("aten.to.dtype", "aten._to_copy.default") else name


def _short(names: list[str]) -> list[str]:
    kept = list(dict.fromkeys(names))
    return kept if len(kept) <= 12 else [*kept[:11], f"… {len(kept) - 11} more"]


def _row_values(program: Program, rows: Tensor) -> dict[int, Tensor]:
    seen: dict[int, Tensor] = {}

    def hook(number: int, op: Op, env: dict[str, Any]) -> None:
        found = (rows_of(env.get(name), len(program.rows)) for name in _made(op, program))
        value = next((rows_ for rows_ in found if rows_ is not None), None)
        if value is not None:
            seen[number] = home(value[rows].clone())

    program.run(hook=hook)
    return seen
