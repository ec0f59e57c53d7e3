"""Rows of single experts as engines add them up: weighted, one for each expert that a token chose.

Nothing is computed again: what an engine sums over its experts is what passed. Whatever buffer it lies in, the point
`expert_out` has a token's rows in the order of expert and slot (expert_rows.py), and `expert_out.experts` whose they
are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .expert_rows import contiguous

Give = Callable[[int, str, Tensor, Any], None]
"""give(layer, point, rows, raw): raw is the engine's own tensor where all rows lie in one, or None."""
POINT = "expert_out"
CHOSEN = "top_k_index"
"""The argument by which transformers' classes of experts are known."""
ADDED = (torch.Tensor.index_add_, torch.index_add, torch.Tensor.index_add)
SUMMED = (torch.Tensor.sum, torch.sum)


class Summed(TorchFunctionMode):
    """While it is active: what is added up over experts.

    parts: (tokens [n], rows [n, W]) of one expert after the other, of a loop; slots: [T, k, W] of grouped products.
    """

    def __init__(self, chosen: Tensor) -> None:
        super().__init__()
        self._shape = tuple(chosen.shape)
        self.parts: list[tuple[Tensor, Tensor]] = []
        self.slots: Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in ADDED and len(args) == 4 and args[1] == 0:
            self.parts.append((args[2], args[3]))
        elif func in SUMMED and args[0].ndim == 3 and tuple(args[0].shape[:2]) == self._shape:
            self.slots = args[0]
        return func(*args, **kwargs)


@dataclass(frozen=True)
class Sink:
    """Where rows go, and what is said of those that cannot be told apart."""

    give: Give
    problems: dict[str, str]


def holds_experts(name: str, module: torch.nn.Module) -> bool:
    return name.endswith("experts") and CHOSEN in inspect.signature(module.forward).parameters


def looped(sink: Sink, layer: int, run: Callable[..., Tensor], count: int) -> Callable[..., Tensor]:
    """transformers' experts: forward(hidden [T, H], chosen [T, k], weights [T, k]), a loop or grouped products."""

    def watched(*args: Any, **kwargs: Any) -> Tensor:
        chosen: Tensor = kwargs[CHOSEN] if CHOSEN in kwargs else args[1]
        with Summed(chosen) as summed:
            out = run(*args, **kwargs)
        if summed.slots is not None:
            tokens, slots = _places(chosen)
            rows = Rows(summed.slots.flatten(0, 1), chosen.flatten(), tokens, slots, summed.slots)
            _give(sink, layer, rows, chosen.shape)
        elif summed.parts:
            _of_loop(sink, layer, summed.parts, chosen, count)
        return out

    return watched


def _places(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Token and slot of each choice, row after row."""
    tokens = torch.arange(chosen.shape[0], device=chosen.device)[:, None].expand_as(chosen)
    return tokens.flatten(), torch.arange(chosen.shape[1], device=chosen.device).expand_as(chosen).flatten()


def _of_loop(sink: Sink, layer: int, parts: list[tuple[Tensor, Tensor]], chosen: Tensor, count: int) -> None:
    """The loop goes over experts from the first on: over all, or over those that anybody chose."""
    hit = [int(n) for n in chosen.unique() if n < count]
    numbers = hit if len(parts) == len(hit) else list(range(count))
    if len(parts) != len(numbers):
        sink.problems[f"{layer}.{POINT}"] = f"{len(parts)} sums over {len(hit)} experts: whose rows is not known"
        return
    tokens = torch.cat([tokens for tokens, _ in parts])
    experts = torch.cat([torch.full_like(tokens, n) for n, (tokens, _) in zip(numbers, parts, strict=True)])
    theirs = chosen[tokens] == experts[:, None]
    if not bool(theirs.any(1).all()):
        sink.problems[f"{layer}.{POINT}"] = "rows of tokens that chose another expert: whose they are is not known"
        return
    slots = theirs.to(torch.int64).argmax(1)
    _give(sink, layer, Rows(torch.cat([rows for _, rows in parts]), experts, tokens, slots), chosen.shape)


def dispatched(
    sink: Sink, layer: int, run: Callable[..., Any], moe: Any, shape: Callable[[], tuple[int, int]]
) -> Callable[..., Any]:
    """Megatron-Core's experts: forward(rows [N, H], counts [E], weights [N]) on rows that its dispatcher has sorted.

    It has a map of tokens and experts in place of slots; a token has an expert once, so that experts number the slots.
    shape: rows of the forward and experts of a token.
    """

    def watched(*args: Any, **kwargs: Any) -> Any:
        made = run(*args, **kwargs)
        rows: Tensor = made[0] if isinstance(made, tuple) else made
        counts = torch.as_tensor(args[1] if len(args) > 1 else kwargs["tokens_per_expert"], dtype=torch.int64).cpu()
        experts = torch.repeat_interleave(torch.arange(len(counts)), counts).to(rows.device)
        tokens = moe.token_dispatcher.reversed_local_input_permutation_mapping
        _give(sink, layer, Rows(rows, experts, tokens, experts, rows), shape())
        return made

    return watched


@dataclass(frozen=True)
class Rows:
    """rows [N, W] with expert, token and slot [N] of each; raw: the engine's own tensor, if all lie in one."""

    rows: Tensor
    experts: Tensor
    tokens: Tensor
    slots: Tensor
    raw: Tensor | None = None


def _give(sink: Sink, layer: int, held: Rows, shape: Sequence[int]) -> None:
    """`shape`: tokens of the forward, experts of a token. Bringing rows into one order is part of what is traced."""
    count = int(held.experts.max()) + 1 if len(held.experts) else 0
    try:
        with torch.no_grad():
            ordered = contiguous(held.rows.detach(), held.experts, held.tokens, held.slots, count)
            flat, ids = ordered.by_token(*shape)
    except ValueError as error:
        sink.problems[f"{layer}.{POINT}"] = str(error)
        return
    sink.give(layer, f"{POINT}.experts", ids, None)
    sink.give(layer, POINT, flat, held.raw)
