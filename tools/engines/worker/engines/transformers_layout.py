"""How sequences are laid out in one forward: alone, padded, or packed; and the proof that packing keeps them apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..engine import EngineError
from ..sequences import Sequences


@dataclass(frozen=True)
class Place:
    """Where a sequence lies in a batch: its row, and the column of its first token."""

    sequence: int
    row: int
    start: int


@dataclass(frozen=True)
class Batch:
    """Inputs of one forward, [rows, columns]; `mask` is None when every token is real and the mask is plain causal."""

    tokens: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor | None
    places: list[Place]

    def inputs(self, device: torch.device) -> dict[str, Any]:
        given: dict[str, Any] = {"input_ids": self.tokens.to(device), "position_ids": self.positions.to(device)}
        return given if self.mask is None else given | {"attention_mask": self.mask.to(device)}


def batches_of(group: list[int], sequences: Sequences, packing: str) -> list[Batch]:
    """The forwards of one group. `engine` is this engine's own habit: padded when there is more than one sequence."""
    if packing == "single" or len(group) == 1:
        return [_padded([index], sequences) for index in group]
    if packing in ("engine", "padded"):
        return [_padded(group, sequences)]
    if packing == "packed":
        return [_packed(group, sequences)]
    raise EngineError(
        "unsupported_packing", f"packing {packing!r}: the transformers engine has engine, single, padded and packed"
    )


def _padded(group: list[int], sequences: Sequences) -> Batch:
    """Padding on the right, where a causal model's real tokens never look."""
    whole = [sequences.whole(index) for index in group]
    longest = max(map(len, whole))
    tokens = torch.tensor([row + [0] * (longest - len(row)) for row in whole])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in whole])
    positions = torch.arange(longest).expand(len(group), -1)
    places = [Place(index, row, 0) for row, index in enumerate(group)]
    return Batch(tokens, positions, None if bool(mask.all()) else mask, places)


def _packed(group: list[int], sequences: Sequences) -> Batch:
    """All in one row; transformers reads from positions that start again where the next sequence begins."""
    whole = [sequences.whole(index) for index in group]
    starts = torch.tensor([0, *map(len, whole)]).cumsum(0).tolist()
    tokens = torch.tensor([token for row in whole for token in row])[None]
    positions = torch.cat([torch.arange(len(row)) for row in whole])[None]
    return Batch(tokens, positions, None, [Place(i, 0, start) for i, start in zip(group, starts, strict=False)])


def prove_packing(model: Any, device: torch.device) -> None:
    """Change the first of two packed sequences; if the second's logits move, this model mixes them.

    Raises: EngineError `unsupported_packing`.
    """
    vocabulary = int(model.get_input_embeddings().num_embeddings)
    first, other, second = (torch.arange(k, k + 24) % vocabulary for k in (1, 7, 3))
    positions = torch.cat([torch.arange(24), torch.arange(24)])[None].to(device)
    was_training = model.training
    model.eval()
    with torch.no_grad():
        seen = [
            model(
                input_ids=torch.cat([leader, second])[None].to(device), position_ids=positions, use_cache=False
            ).logits[0, 24:]
            for leader in (first, other)
        ]
    model.train(was_training)
    if not torch.equal(*seen):
        raise EngineError(
            "unsupported_packing",
            f"packing 'packed': with attention {model.config._attn_implementation!r} a packed sequence of "
            f"{type(model).__name__} sees its neighbour; use 'padded' or 'single', or another attn_implementation",
        )
