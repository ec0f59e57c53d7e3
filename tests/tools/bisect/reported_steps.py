"""Bugs where one side takes a step that the other leaves out, and some that look like something else than they are."""

from __future__ import annotations

from collections.abc import Callable

import torch
from reported_case import Case, part
from reported_operators import SIZE, VOCAB, WIDTH, Way, drawn, inv_freq, logprob, norm, rope
from torch import Tensor
from torch.nn import functional as F

WIDE = 1 + drawn(WIDTH, seed=1, scale=0.3)
SQUARE = drawn(WIDTH, WIDTH, seed=2)
BIAS = drawn(WIDTH, seed=21)
NORM = {"resid_pre": part(1, WIDTH)}
ACT = {"gate": lambda h, p: 4 * part(2, WIDTH)(h, p), "up": lambda h, p: 4 * part(3, WIDTH)(h, p)}
QKV = {"q": part(5, WIDTH), "k": part(6, WIDTH // 2), "v": part(7, WIDTH // 2)}
LINEAR = {"attn_out": part(5, WIDTH)}
ROTATED = {"q_norm": part(4, WIDTH), "positions": lambda h, p: p}
CHOSEN = {
    "router_logits": part(9, 16),
    "topk_ids": lambda h, p: part(9, 16)(h, p).topk(4).indices,
}


def attention(
    *, cap: float = 0.0, window: int = 0, sink: bool = False, tiled: bool = False, cache: torch.dtype | None = None
) -> Way:
    """Causal, two heads to a key; cap: of the scores, by a tanh; sink: a score of zero beside them; tiled: heads take
    their keys in turn and not in groups; cache: what keys and values are kept in."""

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (t.to(cache).to(t.dtype) if cache else t for t in (k, v))
        q, k, v = (t.reshape(t.shape[0], -1, SIZE).transpose(0, 1) for t in (q, k, v))
        k, v = (t.repeat(2, 1, 1) if tiled else t.repeat_interleave(2, 0) for t in (k, v))
        scores = (q @ k.transpose(1, 2)) * SIZE**-0.5
        scores = cap * torch.tanh(scores / cap) if cap else scores
        seen = torch.ones(scores.shape[1:], dtype=torch.bool).tril()
        if window:
            seen = seen.triu(1 - window)
        scores = scores.masked_fill(~seen, float("-inf"))
        if sink:
            scores = torch.cat([scores, torch.zeros_like(scores[..., :1])], -1)
        return (scores.softmax(-1)[..., : k.shape[1]] @ v).transpose(0, 1).flatten(1)

    return run


def routed(*, renormalised: bool = True, factor: float = 0.0, biased: bool = False) -> Way:
    """Sigmoid scores of the chosen; biased: with the bias that only the choice should see."""

    def run(scores: Tensor, ids: Tensor) -> Tensor:
        wide = scores.sigmoid() + torch.linspace(0.1, 0.3, 16) if biased else scores.sigmoid()
        weights = wide.gather(1, ids)
        weights = weights / weights.sum(-1, keepdim=True) if renormalised else weights
        return weights * factor if factor else weights

    return run


def cut_mantissas(x: Tensor, w: Tensor) -> Tensor:
    """As a kernel reads its factors in TF32."""
    x, w = ((t.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32) for t in (x, w))
    return F.linear(x, w)


def processed(change: Callable[[Tensor], Tensor]) -> Way:
    return lambda logits, tokens: logprob(change(logits), tokens)


def nucleus(logits: Tensor) -> Tensor:
    return logits.masked_fill(logits < logits.topk(VOCAB - 8).values[:, -1:], float("-inf"))


def in_float64(logits: Tensor, tokens: Tensor) -> Tensor:
    return logits.double().log_softmax(-1).gather(-1, tokens).float()


def fused(*, clamped: bool) -> Way:
    """Gate and up of one product whose halves are as wide as something else is."""

    def run(x: Tensor, w: Tensor) -> Tensor:
        gate, up = F.linear(x, w).chunk(2, -1)
        gate = gate.clamp(max=0.5) if clamped else gate
        return F.silu(gate) * up

    return run


STEPS: dict[str, Case] = {
    "a norm left out": Case("attn_norm", "semantic", NORM, norm, lambda x, w: x.clone(), (WIDE,), says="a does"),
    "a norm that hands its input on": Case("attn_norm", "semantic", NORM, norm, lambda x, w: x, (WIDE,), says="a does"),
    "a cap of the scores forgotten": Case("attn_out", "semantic", QKV, attention(cap=5.0), attention(), says="tanh"),
    "a sink of attention forgotten": Case("attn_out", "semantic", QKV, attention(sink=True), attention()),
    "a window of attention ignored": Case("attn_out", "layout_mask", QKV, attention(window=3), attention()),
    "heads take their keys in turn": Case("attn_out", "semantic", QKV, attention(), attention(tiled=True)),
    "keys and values kept in float8": Case(
        "attn_out", "precision", QKV, attention(), attention(cache=torch.float8_e4m3fn), says="rounds between"
    ),
    "positions not divided by the scaling factor": Case(
        "q", "semantic", ROTATED, lambda x, p, t: rope(x, p / 4, t), rope, (inv_freq(),), says="aten.div.Tensor"
    ),
    "sigmoid weights not renormalised": Case(
        "topk_weights", "semantic", CHOSEN, routed(), routed(renormalised=False), says="aten.div.Tensor"
    ),
    "a scale of the routed experts forgotten": Case(
        "topk_weights", "semantic", CHOSEN, routed(factor=2.5), routed(), says="aten.mul.Tensor"
    ),
    "a bias of the choice in the weights too": Case(
        "topk_weights", "semantic", CHOSEN, routed(), routed(biased=True), says="b does aten.add.Tensor"
    ),
    "one added to up": Case(
        "act", "semantic", ACT, lambda g, u: F.silu(g) * (u + 1), lambda g, u: F.silu(g) * u, says="a does aten.add"
    ),
    "a bias not loaded": Case(
        "o_proj", "semantic", LINEAR, lambda x, w, b: x @ w.t() + b, lambda x, w, b: x @ w.t(), (SQUARE, BIAS)
    ),
    "mantissas cut by hand are rounding": Case(
        "o_proj", "unknown", LINEAR, lambda x, w: F.linear(x, w), cut_mantissas, (SQUARE,)
    ),
    "a fused product with a clamp": Case(
        "fused", "semantic", {"fused.in0": part(5, WIDTH)}, fused(clamped=False), fused(clamped=True), (SQUARE,),
        says="aten.clamp",
    ),
    "logprobs divided afterwards": Case(
        "logprob", "post_processing", {}, logprob, lambda y, t: logprob(y, t) / 0.7, says="aten.div.Tensor"
    ),
    "logprobs of cut logits": Case("logprob", "post_processing", {}, logprob, processed(nucleus), says="masked_fill"),
    "a penalty taken off some logits": Case(
        "logprob", "post_processing", {}, logprob, processed(lambda y: y - 0.3 * (torch.arange(VOCAB) < 50))
    ),
    "a cap of the logits": Case(
        "logprob", "post_processing", {}, logprob, processed(lambda y: 9 * torch.tanh(y / 9)), says="tanh"
    ),
    "logprobs that are no numbers": Case(
        "logprob", "post_processing", {}, logprob, lambda y, t: logprob(y, t) * float("nan"), says="b does aten.mul"
    ),
    "logprobs in float64": Case("logprob", "precision", {}, logprob, in_float64, says="rounding to float32"),
    "logprobs of the token before": Case(
        "logprob", "post_processing", {}, logprob, lambda y, t: logprob(y, t).roll(1, 0), says="roll"
    ),
}  # fmt: skip
"""The class is what the experiments can show, and no more; a step that is named says nothing of who is right."""
