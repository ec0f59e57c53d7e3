"""The last step: the sampler's own logprobs of given tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .errors import OperatorWithoutEntry
from .identity import function_name
from .stack import Stack
from .visible import Call, Grads, Needs, visible


class Logprob:
    """vLLM's `Sampler.compute_logprobs` at the tokens that followed, as prompt logprobs and decode both take it."""

    def __init__(self, stack: Stack) -> None:
        from vllm.v1.sample.sampler import Sampler

        mode = stack.vllm_config.model_config.logprobs_mode
        if mode != "raw_logprobs":
            raise OperatorWithoutEntry("logprob", f"logprobs_mode={mode}", "set logprobs_mode = 'raw_logprobs'")
        self._compute = Sampler.compute_logprobs

    @property
    def identity(self) -> str:
        return function_name(self._compute)

    def __call__(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """logits [T, V], tokens [T] int64 -> float32 [T]."""

        def value(logits: Tensor, tokens: Tensor) -> Tensor:
            return self._compute(logits).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)

        return visible(Call("logprob", value, _logprob_vjp), logits, tokens)


def _logprob_vjp(tensors: Sequence[Tensor], grads: Grads, needs: Needs) -> Grads:
    """d logprob_t / d logits = onehot(token) - softmax(logits), in float32."""
    logits, tokens = tensors
    grad = grads[0]
    if grad is None or not needs[0]:
        return None, None
    minus = -torch.softmax(logits, dim=-1, dtype=torch.float32)
    minus.scatter_add_(-1, tokens.unsqueeze(-1), torch.ones(len(tokens), 1, device=logits.device))
    return (minus * grad.unsqueeze(-1)).to(logits.dtype), None
