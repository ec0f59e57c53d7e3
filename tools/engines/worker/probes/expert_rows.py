"""Rows of single experts in one order, whatever buffer an engine keeps them in.

Contiguous: [N, W], grouped by expert, as grouped products take them. Masked: [experts, capacity, W] with a count each,
as decode kernels take them. Both hold the same rows, sorted by (expert, token, slot) in the canonical form.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ExpertRows:
    """rows [N, W], experts, tokens and slots [N], sorted by (expert, token, slot); counts [E] of each expert."""

    rows: Tensor
    experts: Tensor
    tokens: Tensor
    slots: Tensor
    counts: Tensor

    def by_token(self, tokens: int, slots: int) -> tuple[Tensor, Tensor]:
        """Rows [T, slots * W] and expert numbers [T, slots], each token's in order of expert and slot.

        What an engine left out (dropped over capacity, on another rank) is zeros, of expert -1.
        """
        order = torch.argsort(self.tokens, stable=True)
        owner = self.tokens[order]
        place = torch.arange(len(owner), device=owner.device) - torch.searchsorted(owner, owner, right=False)
        rows = self.rows.new_zeros(tokens, slots, self.rows.shape[1])
        experts = torch.full((tokens, slots), -1, dtype=torch.int64, device=owner.device)
        rows[owner, place], experts[owner, place] = self.rows[order], self.experts[order].to(torch.int64)
        return rows.reshape(tokens, -1), experts


def contiguous(rows: Tensor, experts: Tensor, tokens: Tensor, slots: Tensor, count: int) -> ExpertRows:
    """rows [N, W]; experts, tokens, slots [N] integers; padding has a token below zero; `count`: experts in all."""
    return _sorted(rows, experts.to(torch.int64), tokens.to(torch.int64), slots.to(torch.int64), count)


def masked(buffer: Tensor, counts: Tensor, tokens: Tensor, slots: Tensor) -> ExpertRows:
    """buffer [E, C, W]; counts [E]; tokens, slots [E, C]; what lies behind an expert's count is nobody's."""
    experts, capacity = buffer.shape[:2]
    if counts.shape != (experts,) or bool((counts > capacity).any()):
        raise ValueError(f"counts: got {counts.tolist()}; allowed are {experts} numbers up to the capacity {capacity}")
    held = torch.arange(capacity, device=counts.device)[None] < counts[:, None]
    numbers = torch.arange(experts, device=counts.device)[:, None].expand(experts, capacity)
    return _sorted(buffer[held], numbers[held], tokens[held].to(torch.int64), slots[held].to(torch.int64), experts)


def _sorted(rows: Tensor, experts: Tensor, tokens: Tensor, slots: Tensor, count: int) -> ExpertRows:
    if not len(rows) == len(experts) == len(tokens) == len(slots):
        raise ValueError(
            f"expert rows: got {len(rows)} rows, {len(experts)} experts, {len(tokens)} tokens, {len(slots)} slots"
        )
    kept = tokens >= 0
    rows, experts, tokens, slots = rows[kept], experts[kept], tokens[kept], slots[kept]
    order = torch.argsort(slots, stable=True)
    for key in (tokens, experts):
        order = order[torch.argsort(key[order], stable=True)]
    keys = torch.stack([tokens, slots], 1)[order]
    if len(torch.unique(keys, dim=0)) != len(keys):
        raise ValueError("expert rows: a token has two rows in one slot")
    counts = torch.bincount(experts, minlength=count)
    return ExpertRows(rows[order], experts[order], tokens[order], slots[order], counts)
