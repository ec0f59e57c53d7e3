"""One optimiser step of a policy gradient, and the checkpoint of the weights after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from . import checkpoint
from .model import CausalLM


@dataclass(frozen=True)
class Update:
    """What a step did: the loss before it, and how many parameters' exported bytes it changed."""

    loss: float
    changed: int
    parameters: int


def one_step(
    model: CausalLM,
    sequences: Sequence[Tensor],
    response_starts: Sequence[int],
    advantages: Sequence[float],
    *,
    learning_rate: float,
) -> Update:
    """-mean(advantage * logprob) over the response tokens, backward, one AdamW step on the master weights.

    sequences: tokens [len] of each; advantages: one for each sequence, not all zero, or nothing would change.
    """
    if not any(advantages):
        raise ValueError("advantages: all are zero, so the loss has no gradient; give at least one that is not")
    before = checkpoint.exported(model)
    before = {name: tensor.clone() for name, tensor in before.items()}
    optimiser = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
    optimiser.zero_grad(set_to_none=True)
    loss = policy_loss(model, sequences, response_starts, advantages)
    loss.backward()
    optimiser.step()
    after = checkpoint.exported(model)
    changed = sum(not torch.equal(before[name], after[name]) for name in before)
    return Update(float(loss.detach()), changed, len(before))


def policy_loss(
    model: CausalLM, sequences: Sequence[Tensor], response_starts: Sequence[int], advantages: Sequence[float]
) -> Tensor:
    """-mean over response tokens of advantage times logprob, in one packed forward."""
    logprobs = model(sequences).split([len(s) - 1 for s in sequences])
    parts = [
        advantage * rows[max(start, 1) - 1 :]
        for rows, start, advantage in zip(logprobs, response_starts, advantages, strict=True)
    ]
    return -torch.cat(parts).mean()
