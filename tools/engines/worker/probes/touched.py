"""Which tensors a kernel wrote, seen by comparing them before and after: its own source does not say."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .program import copied

LARGEST = 1 << 28
"""Bytes; above, a tensor is taken for written."""
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Before:
    """The tensors as they are now, by name; `doubtful` ones, fresh memory say, may already hold what comes."""

    def __init__(self, given: Mapping[str, Tensor], doubtful: set[str]) -> None:
        self._given = given
        self._kept = {
            name: copied(tensor)
            for name, tensor in given.items()
            if name not in doubtful and tensor.numel() * tensor.element_size() <= LARGEST
        }

    def written(self) -> list[str]:
        """Those whose bits are others now, and those of which that cannot be said."""
        return [name for name, tensor in self._given.items() if not self._same(name, tensor)]

    def _same(self, name: str, tensor: Tensor) -> bool:
        kept = self._kept.get(name)
        whole = INTEGERS.get(tensor.element_size())
        return kept is not None and whole is not None and torch.equal(kept.view(whole), tensor.detach().view(whole))
