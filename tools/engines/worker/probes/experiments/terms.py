"""The additions that end a region: the same terms, in another order, or in another dtype?

Shares of ranks, blocks of a split product, the outputs of a token's experts: whatever kernel made the terms, adding
them up is torch's own, and so it can be read. Nothing is inferred: the terms added as read must give the output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..program import Op, Program, copied
from ..rows import rows_of, same_bits, same_values
from .case import Case, Report

ADDS = ("aten.add.Tensor", "aten.add_.Tensor")
SAME = ("detach", "alias", "view", "reshape", "_unsafe_view", "contiguous", "clone", "to", "_to_copy", "squeeze",
        "unsqueeze", "copy_")  # fmt: skip
"""Operators that give what they are given, in another shape or dtype: that they did no more, the output shows."""
FEWEST, MOST = 3, 64

Leaf = tuple[str, int]
"""A tensor's name, and the number of the operator that reads it."""


@dataclass(frozen=True)
class Sum:
    """`at`: the operator that adds."""

    left: Sum | Leaf
    right: Sum | Leaf
    at: int


@dataclass(frozen=True)
class Added:
    """How a program adds up its output: the tree, its terms as rows, and the dtype of each addition."""

    tree: Sum
    terms: dict[Leaf, Tensor]
    dtypes: dict[int, torch.dtype]


def terms(case: Case, report: Report) -> bool:
    """True when both sides add the same terms, and either their order or the dtype of the sums is unlike."""
    a, b = (_added(program, rows) for program, rows in ((case.a, case.shared.a), (case.b, case.shared.b)))
    if a is None or b is None:
        return False
    count, names = len(a.terms), _matched(a.terms, b.terms)
    if names is None:
        report.tried("terms of the last additions", f"{count} and {len(b.terms)}, not the same ones")
        return False
    ordered = _shape(a.tree, {leaf: n for n, leaf in enumerate(a.terms)}) == _shape(b.tree, names)
    kinds = [_dtypes(side) for side in (a, b)]
    said = f"the same {count}, in {'the same' if ordered else 'another'} order, in {kinds[0]} and in {kinds[1]}"
    report.tried("terms of the last additions", said)
    if not ordered and kinds[0] == kinds[1]:
        return report.is_("reduction_order", f"the same {count} terms, equal in every bit, are added in another order")
    if ordered and kinds[0] != kinds[1]:
        return report.is_("precision", f"the same {count} terms are added in {kinds[0]} and in {kinds[1]}")
    return False


def _dtypes(added: Added) -> str:
    return ", ".join(sorted({str(dtype).removeprefix("torch.") for dtype in added.dtypes.values()}))


def _added(program: Program, rows: Tensor) -> Added | None:
    """None unless the program ends in additions, and these, as read, give the output's bits."""
    tree = _tree(program, program.output, len(program.ops))
    leaves = _leaves(tree)
    if not isinstance(tree, Sum) or not FEWEST <= len(leaves) <= MOST:
        return None
    values, dtypes = _values(program, leaves, _sums(tree))
    if len(values) != len(set(leaves)):
        return None
    made, wanted = _evaluated(tree, values, dtypes), program.expected.reshape(len(program.expected), -1)
    given = None if made is None else rows_of(made.to(wanted.dtype), len(program.rows))
    flat = {leaf: rows_of(value, len(program.rows)) for leaf, value in values.items()}
    if given is None or not same_bits(given[rows], wanted[rows]):
        return None
    return Added(tree, {leaf: value[rows] for leaf, value in flat.items() if value is not None}, dtypes)


def _tree(program: Program, name: str, before: int) -> Sum | Leaf:
    number = next((n for n in range(before - 1, -1, -1) if name in program.ops[n].outs), None)
    if number is None:
        return name, before
    op = program.ops[number]
    if op.name in ADDS and _both(op):
        left, right = (_tree(program, argument["t"], number) for argument in op.args[:2])
        return Sum(left, right, number)
    if op.name.split(".")[1] in SAME:
        source = op.args[1 if op.name == "aten.copy_.default" else 0]
        if isinstance(source, dict) and "t" in source:
            found = _tree(program, source["t"], number)
            # What nothing adds up is taken where it is read, after whatever was written into it.
            return found if isinstance(found, Sum) else (name, before)
    return name, before


def _both(op: Op) -> bool:
    return not op.kwargs and len(op.args) == 2 and all(isinstance(a, dict) and "t" in a for a in op.args)


def _leaves(tree: Sum | Leaf) -> list[Leaf]:
    return [*_leaves(tree.left), *_leaves(tree.right)] if isinstance(tree, Sum) else [tree]


def _sums(tree: Sum | Leaf) -> list[int]:
    return [tree.at, *_sums(tree.left), *_sums(tree.right)] if isinstance(tree, Sum) else []


def _values(program: Program, leaves: list[Leaf], sums: list[int]) -> tuple[dict[Leaf, Tensor], dict[int, torch.dtype]]:
    """The terms as they are when an addition reads them, after the operator before it; the dtype of each addition."""
    wanted: dict[int, list[str]] = {}
    for name, at in leaves:
        wanted.setdefault(at - 1, []).append(name)
    found = {(name, 0): program.values[name] for name in wanted.get(-1, []) if name in program.values}
    dtypes: dict[int, torch.dtype] = {}

    def look(number: int, op: Op, env: dict[str, Any]) -> None:
        for name in wanted.get(number, ()):
            if isinstance(env.get(name), Tensor):
                found[name, number + 1] = copied(env[name])
        if number in sums:
            dtypes[number] = env[op.outs[0] or ""].dtype

    program.run(hook=look)
    return found, dtypes


def _evaluated(tree: Sum | Leaf, values: dict[Leaf, Tensor], dtypes: dict[int, torch.dtype]) -> Tensor | None:
    if not isinstance(tree, Sum):
        return values[tree]
    left, right = (_evaluated(side, values, dtypes) for side in (tree.left, tree.right))
    if left is None or right is None or left.numel() != right.numel():
        return None
    return left.to(dtypes[tree.at]) + right.reshape(left.shape).to(dtypes[tree.at])


def _matched(ours: dict[Leaf, Tensor], theirs: dict[Leaf, Tensor]) -> dict[Leaf, int] | None:
    """B's terms by the numbers of the equal ones of A; None where they are not the same."""
    free = list(enumerate(ours.values()))
    found: dict[Leaf, int] = {}
    for leaf, value in theirs.items():
        at = next((n for n, (_, other) in enumerate(free) if _alike(value, other)), None)
        if at is None:
            return None
        found[leaf] = free.pop(at)[0]
    return None if free else found


def _alike(a: Tensor, b: Tensor) -> bool:
    """Terms of a wider dtype may be cast first: then they are equal as numbers."""
    return same_bits(a, b) or (a.dtype != b.dtype and same_values(a.to(torch.float64), b.to(torch.float64)))


def _shape(tree: Sum | Leaf, names: dict[Leaf, int]) -> Any:
    """Which term is added to which; that a sum of two is the same either way round is left out."""
    if not isinstance(tree, Sum):
        return names[tree]
    return tuple(sorted((_shape(tree.left, names), _shape(tree.right, names)), key=repr))
