"""Attention over a paged cache, cut to the one group of heads that shares the keys of the head in question."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from .program import Op, Program, tensors_of

PLAN = "get_scheduler_metadata"
"""vLLM's CPU operator that plans attention; its arguments: requests, query heads, key heads, size of a head, …."""


@dataclass(frozen=True)
class Group:
    """`each` query heads of `size` values share one of `keys` key heads; `number` is the group that stays."""

    number: int
    each: int
    keys: int
    size: int

    @property
    def columns(self) -> slice:
        """Of queries and of the output."""
        width = self.each * self.size
        return slice(self.number * width, (self.number + 1) * width)

    def kind(self, shape: Any) -> str | None:
        """What a tensor or an allocation of this shape holds."""
        if len(shape) == 4 and shape[1] == self.keys:
            return "cache"
        widths = {self.each * self.keys * self.size: "queries", self.keys * self.size: "keys"}
        return widths.get(shape[-1]) if len(shape) == 2 else None

    def cut(self, value: Tensor) -> Tensor:
        match self.kind(value.shape):
            case "cache":
                return value[:, self.number : self.number + 1].contiguous()
            case "queries":
                return value[:, self.columns].contiguous()
            case "keys":
                return value[:, self.number * self.size : (self.number + 1) * self.size].contiguous()
            case _:
                return value

    def resized(self, sizes: list[Any], kind: str) -> list[Any]:
        """Sizes of a view or an allocation of that kind."""
        if kind == "cache":
            return [1 if place == 1 and size == self.keys else size for place, size in enumerate(sizes)]
        heads, kept = (self.each * self.keys, self.each) if kind == "queries" else (self.keys, 1)
        if sizes[-2:] == [heads, self.size]:
            return [*sizes[:-2], kept, self.size]
        return [*sizes[:-1], kept * self.size] if sizes[-1:] == [heads * self.size] else sizes


def one_group(program: Program, column: int) -> tuple[Program, slice] | None:
    """The program for the group that makes `column` of the output, and its columns; None without such attention."""
    plan = next((op for op in program.ops if op.name.split(".")[1] == PLAN), None)
    if plan is None or plan.args[2] < 2 or plan.args[1] % plan.args[2]:
        return None
    heads, keys, size = plan.args[1:4]
    each = heads // keys
    group = Group(column // (each * size), each, keys, size)
    kinds = {name: kind for name, value in program.values.items() if (kind := group.kind(value.shape))}
    values = {name: group.cut(value) for name, value in program.values.items()}
    return replace(program, ops=[_op(op, group, kinds) for op in program.ops], values=values), group.columns


def _op(op: Op, group: Group, kinds: dict[str, str]) -> Op:
    """`kinds` grows by what the operator makes."""
    if op.name.split(".")[1] == PLAN:
        return replace(op, args=[op.args[0], group.each, 1, *op.args[3:]])
    read = tensors_of(op)
    sizes = next((arg for arg in op.args if isinstance(arg, list) and arg and isinstance(arg[0], int)), [])
    kind = kinds.get(read[0]) if read else group.kind(sizes) if sizes else None
    if kind is None or not op.name.startswith("aten."):
        return op
    kinds |= {out: kind for out in op.outs if out is not None}
    return replace(op, args=[group.resized(arg, kind) if arg is sizes else arg for arg in op.args])
