"""Does the row read what is in the rows of other sequences, which no forward may let it?

A mask, a table of lengths or of blocks that is off lets a row see its neighbours. In other company it then reads other
numbers, and whatever else differs (more terms in a sum, other shapes) is a consequence.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..program import Program
from ..rows import rows_of, same_bits
from .case import Case, Report
from .replay import attempt


def reach(case: Case, report: Report) -> bool:
    """One side only: across two engines, other company is no condition that was changed."""
    if not case.same_side:
        return False
    tried = False
    for name, program, rows in ((case.names[0], case.a, case.shared.a), (case.names[1], case.b, case.shared.b)):
        target = int(rows[case.shared.target])
        others = _others(program, target)
        overrides = _turned(program, others)
        if not others or not overrides:
            continue
        tried = True
        plain, turned = (rows_of(attempt(program, given), len(program.rows)) for given in (None, overrides))
        if plain is None or turned is None or same_bits(plain[target], turned[target]):
            continue
        report.tried(f"{name}: the values in each row of other sequences turned round", "this row's bits change")
        said = f"{name}: the row's bits depend on what is in the rows of other sequences"
        return report.is_("layout_mask" if case.kind == "attention" else "batch_variance", said)
    if tried:
        report.tried("the values in each row of other sequences turned round", "this row's bits stay")
    return False


def _others(program: Program, target: int) -> list[int]:
    """None where the row's own sequence is not whole: a prefix that both share may lie in the other's rows."""
    sequence, position = program.rows[target]
    own = {at for of, at in program.rows if of == sequence}
    if not own >= set(range(position + 1)):
        return []
    return [number for number, (of, _) in enumerate(program.rows) if of >= 0 and of != sequence]


def _turned(program: Program, others: list[int]) -> dict[str, Tensor]:
    """Inputs with these rows' values in the opposite order each: a scale taken over all rows stays as it is."""
    overrides = {}
    for name in program.inputs.values():
        value = program.values[name]
        flat = rows_of(value, len(program.rows)) if value.is_floating_point() else None
        if flat is None:
            continue
        made = flat.clone()
        made[torch.tensor(others, dtype=torch.long)] = flat[others].flip(-1)
        if not same_bits(made, flat):
            overrides[name] = made.reshape(value.shape)
    return overrides
