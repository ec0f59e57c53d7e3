"""Rows whose bits depend on how many others there are, or on earlier ones: what nobody needs of the others is blanked.

The number of rows, the plan and the kernel stay; the content of other sequences and of later rows becomes zeros, which
are not written. Only where the rows that stay keep the bits that they had. Earlier rows of the row's own sequence are
never blanked for an operator that may read them, so that another mask or another table can still be tried on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from .program import Program
from .rows import gives, same_bits

TILE = 64
"""Positions around the one in question that stay, as far as they are there."""
ALONE = frozenset(
    ("embed", "resid_pre", "attn_norm", "q_proj", "k_proj", "v_proj", "q_norm", "k_norm", "q", "k", "v", "o_proj")
    + ("resid_mid", "mlp_norm", "gate", "up", "act", "router_logits", "topk_ids", "topk_weights", "mlp_out")
    + ("resid_post", "final_norm", "head_input", "logits", "logprob")
)
"""Outputs that are computed from their own row; whatever else, attention and a user's own, may read earlier ones."""


def blanked(program: Program, sequence: int, position: int) -> Program:
    """The program with what its rows around (sequence, position) do not need as zeros, or as it is."""
    start = position // TILE * TILE
    window = [sequence, start, start + TILE]
    kept = [n for n, (owner, at) in enumerate(program.rows) if owner == sequence and start <= at < start + TILE]
    needed = [n for n, (owner, at) in enumerate(program.rows) if owner == sequence and at < start + TILE]
    count = len(program.rows)
    if len(kept) == count or any(len(t) != count for t in (program.expected, *program.canonical.values())):
        return program
    wanted = program.expected.reshape(count, -1)[kept]
    for values in _proposals(program, kept, needed):
        made = replace(program, values=values, notes={**program.notes, "window": window})
        if gives(made, wanted, kept):
            expected = _only(program.expected, kept)
            canonical = {point: _canonical(program, made, point, needed) for point in program.canonical}
            return replace(made, expected=expected, canonical=canonical)
    return program


def _proposals(program: Program, kept: list[int], needed: list[int]) -> Iterator[dict[str, Tensor]]:
    """Fewest bytes first."""
    count = len(program.rows)
    rows = {n: point for point, n in program.inputs.items() if _leading(program.values[n], count)}
    caches = [n for n in program.notes.get("caches", ()) if n in program.values]
    alone = program.notes["output"][1] in ALONE
    for emptied in [caches, []] if caches else [[]]:
        values = dict(program.values) | {n: torch.zeros_like(program.values[n]) for n in emptied}
        # A query's row is nobody else's; keys and values are read by later rows.
        own = {n: kept if alone or point.endswith(".q") else needed for n, point in rows.items()}
        yield values | {n: _only(values[n], places) for n, places in own.items()}
        if not alone:
            yield values | {n: _only(values[n], needed) for n in rows}


def _leading(value: Tensor, count: int) -> bool:
    return bool(value.is_floating_point() and value.ndim > 1 and value.shape[0] == count)


def _only(value: Tensor, places: list[int]) -> Tensor:
    made = torch.zeros_like(value)
    made[places] = value[places]
    return made


def _canonical(program: Program, made: Program, point: str, needed: list[int]) -> Tensor:
    """The same tensor as the blanked input where it was the same before: it is stored once."""
    before, name = program.canonical[point], program.inputs.get(point)
    if name is not None and same_bits(program.values[name].flatten(), before.flatten()):
        return made.values[name].reshape(before.shape)
    return _only(before, needed) if before.is_floating_point() else before
