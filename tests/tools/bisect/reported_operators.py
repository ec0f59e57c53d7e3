"""Operators of a small decoder layer, each in the ways that public reports found different, and neighbours of these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

WIDTH, VOCAB, HEADS, SIZE = 64, 200, 4, 16
BF = torch.bfloat16
Way = Callable[..., Tensor]


def drawn(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# --- norms ----------------------------------------------------------------------------------------------------------


def norm(x: Tensor, weight: Tensor, *, late: bool = False, eps: float = 1e-6, outside: bool = False) -> Tensor:
    wide = x.float()
    mean = wide.pow(2).mean(-1, keepdim=True)
    wide = wide / (mean.sqrt() + eps) if outside else wide * torch.rsqrt(mean + eps)
    return (weight.float() * wide).to(x.dtype) if late else weight.to(x.dtype) * wide.to(x.dtype)


def norm_by_halves(x: Tensor, weight: Tensor) -> Tensor:
    squares = x.float().pow(2)
    half = x.shape[-1] // 2
    mean = (squares[:, :half].sum(-1, keepdim=True) + squares[:, half:].sum(-1, keepdim=True)) / x.shape[-1]
    return weight * (x.float() * torch.rsqrt(mean + 1e-6)).to(x.dtype)


def norm_of(**other: Any) -> Way:
    return lambda x, w: norm(x, w, **other)


# --- activations ----------------------------------------------------------------------------------------------------


def gated(act: Way, *, early: bool = False, limit: float | None = None) -> Way:
    def run(g: Tensor, u: Tensor) -> Tensor:
        if limit is not None:
            g, u = g.clamp(max=limit), u.clamp(min=-limit, max=limit)
        return act(g) * u if early else (act(g.float()) * u.float()).to(g.dtype)

    return run


def gelu(kind: str) -> Way:
    return lambda x: F.gelu(x, approximate=kind)


# --- rotations ------------------------------------------------------------------------------------------------------


def inv_freq(theta: float = 10000.0) -> Tensor:
    return 1.0 / theta ** (torch.arange(0, SIZE // 2) / (SIZE // 2))


def rope(x: Tensor, positions: Tensor, table: Tensor, *, narrow: bool = False, interleaved: bool = False) -> Tensor:
    angle = (3000 + positions).float()[:, None] * table
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    if narrow:
        cos, sin = cos.to(BF).float(), sin.to(BF).float()
    heads = x.float().reshape(x.shape[0], HEADS, SIZE)
    left, right = (heads[..., ::2], heads[..., 1::2]) if interleaved else heads.chunk(2, -1)
    turned = left * cos - right * sin, right * cos + left * sin
    made = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    return made.reshape(x.shape).to(x.dtype)


def mrope(sections: list[int]) -> Way:
    def run(x: Tensor, positions: Tensor, table: Tensor) -> Tensor:
        three = torch.stack([positions, positions // 7, positions % 7], 1)
        angle = three.float()[:, sections] * table
        left, right = x.reshape(x.shape[0], HEADS, SIZE).chunk(2, -1)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        return torch.cat([left * cos - right * sin, right * cos + left * sin], -1).reshape(x.shape)

    return run


# --- recurrences ----------------------------------------------------------------------------------------------------


def scan(size: int, *, forgets: bool = False) -> Way:
    """y_t = a_t y_(t-1) + x_t by chunks: products of decays inside, one carried state between."""

    def run(x: Tensor, decay: Tensor) -> Tensor:
        out, state = [], x.new_zeros(x.shape[1])
        for start in range(0, x.shape[0], size):
            a, chunk = decay[start : start + size, 0].log().cumsum(0), x[start : start + size]
            gain = (a[:, None] - a[None]).exp().tril()
            out.append(gain @ chunk + a.exp()[:, None] * state)
            state = torch.zeros_like(state) if forgets else out[-1][-1]
        return torch.cat(out)

    return run


def steps(x: Tensor, decay: Tensor, *, narrow: bool = False) -> Tensor:
    out, state = [], x.new_zeros(x.shape[1])
    for t in range(x.shape[0]):
        state = decay[t] * state + x[t]
        state = state.to(BF).float() if narrow else state
        out.append(state)
    return torch.stack(out)


def delta_steps(k: Tensor, v: Tensor, beta: Tensor, decay: Tensor) -> Tensor:
    """The gated delta rule: S_t = a_t S_(t-1) (I - b_t k_t k_t') + b_t v_t k_t'; y_t = S_t k_t."""
    k = F.normalize(k, dim=-1)
    state, out = v.new_zeros(v.shape[1], k.shape[1]), []
    for t in range(v.shape[0]):
        state = decay[t] * state
        state = state + beta[t] * torch.outer(v[t] - state @ k[t], k[t])
        out.append(state @ k[t])
    return torch.stack(out)


def delta_chunk(size: int) -> Way:
    """The same by chunks, in the WY form: one triangular solve a chunk instead of one step a token."""

    def run(k: Tensor, v: Tensor, beta: Tensor, decay: Tensor) -> Tensor:
        k = F.normalize(k, dim=-1)
        state, out = v.new_zeros(v.shape[1], k.shape[1]), []
        for start in range(0, v.shape[0], size):
            at = slice(start, start + size)
            log = decay[at, 0].log().cumsum(0)
            gain = (log[:, None] - log[None]).exp()
            inner = (beta[at] * (k[at] @ k[at].t()) * gain).tril(-1)
            new = beta[at] * (v[at] - log.exp()[:, None] * (k[at] @ state.t()))
            new = torch.linalg.solve_triangular(torch.eye(len(log)) + inner, new, upper=False, unitriangular=True)
            out.append(log.exp()[:, None] * (k[at] @ state.t()) + ((k[at] @ k[at].t()) * gain).tril() @ new)
            state = log[-1].exp() * state + ((log[-1] - log).exp()[:, None] * new).t() @ k[at]
        return torch.cat(out)

    return run


def conv(x: Tensor, weight: Tensor) -> Tensor:
    """A causal depthwise convolution over four rows."""
    padded = F.pad(x.t()[None], (weight.shape[1] - 1, 0))
    return F.conv1d(padded, weight[:, None], groups=x.shape[1])[0].t()


def conv_steps(x: Tensor, weight: Tensor, *, forgets: int = 0) -> Tensor:
    state, out = x.new_zeros(weight.shape[1], x.shape[1]), []
    for t in range(x.shape[0]):
        if forgets and t % forgets == 0:
            state = torch.zeros_like(state)
        state = torch.cat([state[1:], x[t : t + 1]])
        out.append((state * weight.t()).sum(0))
    return torch.stack(out)


# --- attention, head, quantisation, mixing --------------------------------------------------------------------------


def attention(q: Tensor, k: Tensor, v: Tensor, *, keys: int = 0, backwards: bool = False) -> Tensor:
    """Causal; `keys`: by blocks of that many keys with the running maximum, as flash kernels do."""
    q, k, v = (t.reshape(t.shape[0], HEADS, SIZE).transpose(0, 1) for t in (q, k, v))
    scores = (q @ k.transpose(1, 2)) * SIZE**-0.5
    scores = scores.masked_fill(torch.ones(scores.shape[1:], dtype=torch.bool).triu(1), float("-inf"))
    if backwards:
        return (scores.softmax(-1).flip(-1) @ v.flip(1)).transpose(0, 1).flatten(1)
    if not keys:
        return (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)
    top, total, made = scores[..., :1] * 0 - 1e30, scores[..., :1] * 0, torch.zeros_like(q)
    for start in range(0, k.shape[1], keys):
        block = scores[..., start : start + keys]
        now = torch.maximum(top, block.amax(-1, keepdim=True))
        weight, keep = (block - now).exp(), (top - now).exp()
        total, made, top = (
            total * keep + weight.sum(-1, keepdim=True),
            made * keep + weight @ v[:, start : start + keys],
            now,
        )
    return (made / total).transpose(0, 1).flatten(1)


def logprob(logits: Tensor, tokens: Tensor, *, lanes: int = 0, fill: float = 0.0, temperature: float = 1.0) -> Tensor:
    wide = F.pad(logits.float(), (0, lanes), value=fill) / temperature
    return wide.log_softmax(-1).gather(-1, tokens)


def logprob_by_blocks(size: int) -> Way:
    def run(logits: Tensor, tokens: Tensor) -> Tensor:
        parts = torch.stack([block.logsumexp(-1) for block in logits.split(size, -1)], -1)
        return logits.gather(-1, tokens) - parts.logsumexp(-1, keepdim=True)

    return run


def quantised(*, power_of_two: bool, group: int = WIDTH) -> Way:
    def run(x: Tensor) -> Tensor:
        groups = x.reshape(x.shape[0], -1, group)
        scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448.0
        scale = torch.exp2(scale.log2().ceil()) if power_of_two else scale
        return ((groups / scale).to(torch.float8_e4m3fn).float() * scale).reshape(x.shape)

    return run


def payload(*, power_of_two: bool, group: int = 16) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """FP8 rows and their scales [rows, groups]."""

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        groups = x.reshape(x.shape[0], -1, group)
        scale = groups.abs().amax(-1).clamp(min=1e-4) / 448.0
        scale = torch.exp2(scale.log2().ceil()) if power_of_two else scale
        return (groups / scale[..., None]).to(torch.float8_e4m3fn).flatten(1), scale

    return run


def permuted(x: Tensor, weight: Tensor) -> Tensor:
    order = torch.arange(x.shape[1] - 1, -1, -1)
    return x[:, order] @ weight[:, order].t()


def chosen(scores: Tensor) -> dict[str, Tensor]:
    return {"topk_ids": scores.float().topk(16).indices}
