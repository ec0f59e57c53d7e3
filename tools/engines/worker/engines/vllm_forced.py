"""Forced-token decode: the engine samples what it is told to, and reports the raw logprob it had for it.

A logits processor of vLLM's own interface. Raw logprobs are taken from the logits before any processor runs
(vllm/v1/sample/sampler.py), so forcing changes which token is fed next and nothing else.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from .vllm_environment import FORCED


class ForcedTokens(LogitsProcessor):  # type: ignore[misc]
    """Leaves one token's logit finite in the rows of requests that carry `extra_args[FORCED]`."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        # Batch row -> (tokens to force, the engine's own growing list of tokens sampled so far).
        self._rows: dict[int, tuple[list[int], list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for row in batch_update.removed:
            self._rows.pop(row, None)
        for row, params, _, sampled in batch_update.added:
            self._rows.pop(row, None)
            forced = (params.extra_args or {}).get(FORCED)
            if forced:
                self._rows[row] = (forced, sampled)
        for source, target, direction in batch_update.moved:
            self._move(source, target, direction)

    def _move(self, source: int, target: int, direction: MoveDirectionality) -> None:
        there = self._rows.pop(target, None)
        here = self._rows.pop(source, None)
        if here is not None:
            self._rows[target] = here
        if there is not None and direction == MoveDirectionality.SWAP:
            self._rows[source] = there

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        due = [(row, forced[len(done)]) for row, (forced, done) in self._rows.items() if len(done) < len(forced)]
        if not due:
            return logits
        rows = torch.tensor([row for row, _ in due], device=logits.device)
        tokens = torch.tensor([token for _, token in due], device=logits.device)
        logits[rows] = float("-inf")
        logits[rows, tokens] = 0.0
        return logits
