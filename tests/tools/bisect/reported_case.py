"""A reported bug as two ways to compute one operator, and what the operator reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from reported_operators import WIDTH, Way, drawn
from torch import Tensor
from torch.nn import functional as F

Given = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """`out`: the point that the operator ends in; `class_`: the answer; `given`: point -> of (hidden, positions)."""

    out: str
    class_: str
    given: dict[str, Callable[[Tensor, Tensor], Tensor]]
    a: Way
    b: Way
    tables: tuple[Tensor, ...] = ()
    other: tuple[Tensor, ...] | None = None
    says: str = ""
    after: Callable[[Tensor], dict[str, Tensor]] | None = None
    layouts: tuple[str, str] | None = None


def part(number: int, width: int, dtype: torch.dtype = torch.float32) -> Callable[[Tensor, Tensor], Tensor]:
    """A projection of the hidden state of its own."""
    weight = drawn(width, WIDTH, seed=100 + number, scale=WIDTH**-0.5)
    return lambda h, _: F.linear(h.float(), weight).to(dtype)


def gate(low: float, high: float, number: int, width: int = 1) -> Callable[[Tensor, Tensor], Tensor]:
    inner = part(number, width)
    return lambda h, p: low + (high - low) * torch.sigmoid(inner(h, p))
