"""A trainer of somebody's own, as a `python` side: one of its norms can cast before or after its weight."""

from __future__ import annotations

from typing import Any

import torch
import transformers


def load(path: str, options: dict[str, Any]) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).eval()
    norm = model.model.layers[1].post_attention_layernorm
    with torch.no_grad():
        norm.weight.copy_(1 + 0.3 * torch.randn(norm.weight.shape, generator=torch.Generator().manual_seed(1)))
    if options["late"]:
        norm.forward = lambda x: late(norm, x)
    return model


def late(norm: Any, x: torch.Tensor) -> torch.Tensor:
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)
    return (norm.weight * wide).to(x.dtype)


def model(state: Any) -> torch.nn.Module:
    net: torch.nn.Module = state
    return net


def score(state: Any, sequences: Any, mode: str) -> list[torch.Tensor]:
    found = []
    longest = max(len(s.tokens) for s in sequences)
    tokens = torch.tensor([s.tokens + [0] * (longest - len(s.tokens)) for s in sequences])
    with torch.set_grad_enabled(mode == "train_forward"):
        logits = state(input_ids=tokens).logits.float().log_softmax(-1)
        for row, s in enumerate(sequences):
            first, last = s.response_start, len(s.tokens)
            chosen = torch.tensor(s.tokens[first:])
            found.append(logits[row, first - 1 : last - 1].gather(-1, chosen[:, None])[:, 0])
    return found
