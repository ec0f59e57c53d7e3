"""What may be done to equal logits on the way to a logprob: temperature, a soft limit, padded lanes."""

from __future__ import annotations

import torch
from torch import Tensor

TEMPERATURES = (0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 1.1, 1.2, 1.25, 1.3, 1.5, 1.7, 2.0)
LIMITS = (10.0, 15.0, 20.0, 25.0, 30.0, 50.0, 100.0)
CLOSE = 1e-4


def explained_logprobs(logits: Tensor, a: Tensor, b: Tensor) -> str | None:
    """Words for the transform under which one side is the plain log-softmax and the other is not; None without one."""
    wide = logits.to(torch.float64)
    plain = wide.log_softmax(-1)
    for name, own, other in (("b", a, b), ("a", b, a)):
        # The token whose plain logprob this side reports: the side that is plain tells which token was scored.
        distance = (plain - own.to(torch.float64)[:, :1]).abs()
        tokens = distance.argmin(dim=1, keepdim=True)
        if float(distance.gather(1, tokens).max()) > CLOSE:
            continue
        said = _transform(wide, tokens, other.to(torch.float64)[:, :1])
        if said:
            return f"side {name}: {said}"
    return None


def _transform(wide: Tensor, tokens: Tensor, other: Tensor) -> str | None:
    for temperature in TEMPERATURES:
        scaled = (wide / temperature).log_softmax(-1).gather(1, tokens)
        if float((scaled - other).abs().max()) < CLOSE:
            return f"the logits were divided by the temperature {temperature}"
    for limit in LIMITS:
        capped = (limit * (wide / limit).tanh()).log_softmax(-1).gather(1, tokens)
        if float((capped - other).abs().max()) < CLOSE:
            return f"the logits were softly limited to {limit:g} (a tanh)"
    mass = (wide.gather(1, tokens) - other).exp() - wide.exp().sum(-1, keepdim=True)
    lanes = mass.round()
    if bool((lanes == lanes[0]).all()) and float(lanes[0]) >= 1 and float(((mass - lanes) / lanes).abs().max()) < 1e-2:
        return f"{int(lanes[0])} lanes of value 0 beyond the vocabulary take part in the log-sum-exp"
    return None
