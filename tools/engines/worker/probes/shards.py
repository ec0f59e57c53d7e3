"""Shards of one tensor put together by what its dims string says, bits untouched.

The string names each dimension and the parallel axis that cuts it: `b s[cp:zigzag] h[tp]`, several axes from the
outermost in (`s[cp:zigzag,tp]`). After `#` stands what axes that cut nothing do: `# ep:replicated` (as is every axis
not named), `# tp:partial` (each rank holds a summand) or `# tp:partial=ordered` (summed in the order of the ranks).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .rows import differing, same_bits

Coords = Mapping[str, int]
Shard = tuple[Coords, Tensor]
"""Where the rank stands on each axis, and what it holds."""

_DIM = re.compile(r"^(?P<name>\w+|\(\w+(?:\*\w+)+\))(?:\[(?P<cuts>[^\]]+)\])?$")
LAYOUTS = ("", "zigzag")
REST = ("replicated", "partial", "partial=ordered")


class ReplicasDiffer(ValueError):
    """Ranks that should hold the same bits do not: a finding of its own."""


@dataclass(frozen=True)
class Cut:
    dim: int
    axis: str
    layout: str = ""


@dataclass(frozen=True)
class Dims:
    names: tuple[str, ...]
    cuts: tuple[Cut, ...]
    rest: Mapping[str, str]


def parsed(text: str) -> Dims:
    """Raises ValueError that says which part, and what is allowed."""
    before, _, after = text.partition("#")
    names: list[str] = []
    cuts: list[Cut] = []
    for dim, part in enumerate(before.split()):
        match = _DIM.match(part)
        if match is None:
            raise ValueError(
                f"dims: got {part!r}; allowed is a name, (a*b), each with [axis] or [axis:zigzag] after it"
            )
        names.append(match["name"])
        cuts += [_cut(dim, one) for one in (match["cuts"] or "").split(",") if one]
    axes = [cut.axis for cut in cuts]
    if len(set(axes)) != len(axes):
        raise ValueError(f"dims: got {text!r}; an axis cuts one dimension only")
    return Dims(tuple(names), tuple(cuts), dict(_rest(one) for one in after.split()))


def _cut(dim: int, text: str) -> Cut:
    axis, _, layout = text.strip().partition(":")
    if not axis or layout not in LAYOUTS:
        raise ValueError(f"dims: got [{text}]; allowed is [axis] or [axis:zigzag]")
    return Cut(dim, axis, layout)


def _rest(text: str) -> tuple[str, str]:
    axis, _, kind = text.partition(":")
    if not axis or kind not in REST:
        raise ValueError(f"dims: got {text!r} after #; allowed is axis: and one of {', '.join(REST)}")
    return axis, kind


def whole(shards: Sequence[Shard], text: str) -> Tensor:
    """The tensor that the shards are of.

    Raises:
        ReplicasDiffer: ranks along an axis that cuts nothing hold other bits.
        ValueError: the string cannot be read, a shard is missing, or a sum is left that has no bits yet.
    """
    dims = parsed(text)
    if not shards:
        raise ValueError("shards: got none; at least one rank's is needed")
    if any(tensor.ndim != len(dims.names) for _, tensor in shards):
        shapes = [list(tensor.shape) for _, tensor in shards]
        raise ValueError(f"dims: {text!r} names {len(dims.names)} dimensions; the shards have shapes {shapes}")
    held = [(dict(coords), tensor) for coords, tensor in shards]
    for cut in reversed(dims.cuts):
        held = [(rest, _joined(parts, cut)) for rest, parts in _along(held, cut.axis)]
    for axis in sorted({name for coords, _ in held for name in coords}):
        kind = dims.rest.get(axis, "replicated")
        held = [(rest, _merged(parts, axis, kind)) for rest, parts in _along(held, axis)]
    return held[0][1]


def _along(held: Sequence[tuple[dict[str, int], Tensor]], axis: str) -> list[tuple[dict[str, int], list[Tensor]]]:
    """Shards that stand alike on the other axes, each group in the order of this axis; none may be missing."""
    groups: dict[tuple[tuple[str, int], ...], dict[int, Tensor]] = {}
    for coords, tensor in held:
        rest = tuple(sorted((name, at) for name, at in coords.items() if name != axis))
        groups.setdefault(rest, {})[coords.get(axis, 0)] = tensor
    sizes = {len(group) for group in groups.values()}
    for rest, group in groups.items():
        if sorted(group) != list(range(len(group))) or len(sizes) > 1:
            raise ValueError(
                f"shards: {axis} has ranks {sorted(group)} at {dict(rest)}; each from 0 on is needed, once"
            )
    return [(dict(rest), [group[at] for at in range(len(group))]) for rest, group in groups.items()]


def _joined(parts: list[Tensor], cut: Cut) -> Tensor:
    if cut.layout != "zigzag":
        return torch.cat(parts, cut.dim)
    # Rank r of n holds chunks r and 2n - 1 - r of 2n, so that causal attention is even work for all.
    halves = [part.chunk(2, cut.dim) for part in parts]
    if any(len(pair) != 2 or pair[0].shape != pair[1].shape for pair in halves):
        raise ValueError(f"dims: zigzag along dimension {cut.dim} needs an even size, got {list(parts[0].shape)}")
    return torch.cat([*(first for first, _ in halves), *(last for _, last in reversed(halves))], cut.dim)


def _merged(parts: list[Tensor], axis: str, kind: str) -> Tensor:
    if kind == "partial":
        raise ValueError(
            f"dims: {axis}:partial leaves a sum whose bits depend on its order; hand over what was reduced, or say "
            f"{axis}:partial=ordered if the ranks are added in their order"
        )
    if kind == "partial=ordered":
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total
    for rank, part in enumerate(parts[1:], 1):
        if part.shape != parts[0].shape or part.dtype != parts[0].dtype:
            raise ReplicasDiffer(f"rank {rank} of {axis} holds {list(part.shape)} of {part.dtype}, rank 0 does not")
        if not same_bits(parts[0].reshape(1, -1), part.reshape(1, -1)):
            count = int(differing(parts[0].reshape(-1, 1), part.reshape(-1, 1)).sum())
            raise ReplicasDiffer(
                f"rank {rank} of {axis} holds other bits than rank 0 ({count} of {part.numel()} values)"
            )
    return parts[0]
