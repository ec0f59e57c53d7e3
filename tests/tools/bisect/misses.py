"""Run by the engine's interpreter: each kind of fault that the injector once found named wrong, or not at all.

As in cases.py: two ways to compute one operator, and what the product's experiments say of them, as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from cases import ROWS, in_company, said
from torch.nn import functional as F


def permuted(x: Any, order: Any, table: Any) -> Any:
    return x[:, order] @ table.t()


def halves(x: Any, weight: Any) -> Any:
    half = x.shape[1] // 2
    return F.linear(x[:, :half], weight[:, :half].contiguous()) + F.linear(x[:, half:], weight[:, half:].contiguous())


def shares(x: Any, tables: list[Any], order: tuple[int, ...]) -> Any:
    size = x.shape[1] // len(tables)
    parts = [F.linear(x[:, i * size : (i + 1) * size], table) for i, table in enumerate(tables)]
    total = parts[order[0]]
    for number in order[1:]:
        total = total + parts[number]
    return total


def added(x: Any, tables: list[Any], dtype: Any) -> Any:
    """Shares of ranks, added up in `dtype`."""
    size = x.shape[1] // len(tables)
    parts = [F.linear(x[:, i * size : (i + 1) * size], table).to(dtype) for i, table in enumerate(tables)]
    return (((parts[0] + parts[1]) + parts[2]) + parts[3]).to(x.dtype)


def experts(x: Any, ids: Any, weights: Any, table: Any, *, backwards: bool) -> Any:
    """Each token's experts by one kernel, their outputs added up by another, from the first slot or from the last."""
    made = torch.einsum("th,tkhw->tkw", x, table[ids]) * weights[..., None]
    return (made.flip(1) if backwards else made).cumsum(1)[:, -1]


def normed(wide: Any, weight: Any) -> Any:
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).bfloat16()


def one_by_one(x: Any, weight: Any) -> Any:
    return torch.cat([F.linear(x[:1], weight), F.linear(x[1:], weight)])


def autocast(x: Any, weight: Any) -> Any:
    return F.linear(x.to(torch.bfloat16), weight).float()


def rope(x: Any, positions: Any, table: Any, *, shift: int = 0, pairs: bool = False) -> Any:
    cos, sin = table.index_select(0, positions + shift if shift else positions).chunk(2, -1)
    if pairs:
        even, odd = x[:, ::2], x[:, 1::2]
        return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)
    low, high = x.chunk(2, -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def attend(q: Any, k: Any, v: Any, *, window: int = 0, scale: float = 1.0) -> Any:
    seen = torch.ones(ROWS, ROWS, dtype=torch.bool).tril()
    seen = seen.triu(1 - window) if window else seen
    scores = (q @ k.t() * (scale * q.shape[1] ** -0.5)).masked_fill(~seen, float("-inf"))
    return scores.softmax(-1) @ v


def race(x: Any, weight: Any) -> Any:
    parts = torch.stack([F.linear(x * (torch.arange(x.shape[1]) % 2 == i), weight) for i in range(2)])
    third = F.linear(x, weight * 1e-3)
    first, second = parts[torch.randperm(2)]
    return (first + third) + second


def routed(logits: Any, ids: Any, *, plain: bool) -> Any:
    picked = logits.softmax(-1).gather(-1, ids)
    return picked if plain else picked / picked.sum(-1, keepdim=True)


def attended(q: Any, k: Any, v: Any, own: bool = False) -> Any:
    """Causal over the rows as they lie; own: within halves that are sequences, if there are two."""
    seen = torch.ones(len(q), len(q), dtype=torch.bool)
    seen = torch.block_diag(seen[: ROWS // 2, : ROWS // 2], seen[ROWS // 2 :, ROWS // 2 :]) if own else seen
    return ((q @ k.t()) / 8).masked_fill(~seen, float("-inf")).softmax(-1) @ v


def main() -> None:
    torch.manual_seed(0)
    x, square = torch.randn(ROWS, 256), torch.randn(64, 256)
    long = torch.randn(ROWS, 3072)
    narrow, other, gain = (torch.randn(*size).bfloat16() for size in ((ROWS, 256), (ROWS, 256), (256,)))
    order = torch.arange(255, -1, -1)
    tables = [torch.randn(64, 64).bfloat16() for _ in range(4)]
    q, positions = torch.randn(ROWS, 64), torch.arange(ROWS)
    angle = torch.arange(64)[:, None] / 10000 ** (torch.arange(32) / 32)
    table = torch.cat([angle.cos(), angle.sin()], -1)
    k, v = torch.randn(ROWS, 64), torch.randn(ROWS, 64)
    qkv = {"q": q, "k": k, "v": v}
    ids, embedding = torch.arange(3, 3 + ROWS)[:, None], torch.randn(50, 64)
    logits = torch.randn(ROWS, 8)
    chosen, best = logits.topk(2).indices, logits.topk(4)
    heads = {name: torch.randn(ROWS, 64) for name in ("q", "k", "v")}
    results = {
        "a weight kept in another order": said(
            "linear", lambda x, w: x @ w.t(), lambda x, w: permuted(x, order, w), {"x": x}, square,
            other=(square[:, order].contiguous(),),
        ),
        "shares of ranks in another order": said(
            "linear", lambda x, t: shares(x, t, (0, 1, 2, 3)), lambda x, t: shares(x, t, (3, 2, 1, 0)),
            {"x": x.bfloat16()}, tables,
        ),
        "autocast left on": said(
            "linear", F.linear, autocast, {"x": x}, square.bfloat16().float(), other=(square.bfloat16(),)
        ),
        "positions shifted inside": said(
            "rope", rope, lambda x, p, t: rope(x, p, t, shift=1), {"k_norm": q, "positions": positions}, table
        ),
        "pairs turned for halves": said(
            "rope", rope, lambda x, p, t: rope(x, p, t, pairs=True), {"k_norm": q, "positions": positions}, table
        ),
        "a window in the mask": said("attention", attend, lambda q, k, v: attend(q, k, v, window=4), qkv),
        "another scale of the scores": said("attention", attend, lambda q, k, v: attend(q, k, v, scale=1.25), qkv),
        "the next row of the embedding": said(
            "embedding", lambda i, t: F.embedding(i[:, 0], t), lambda i, t: F.embedding(i[:, 0] + 1, t),
            {"token_ids": ids}, embedding,
        ),
        "a race between few": said("linear", lambda x, w: halves(x, w), race, {"x": x}, square),
        "routing weights not renormalised": said(
            "topk", lambda s, i: routed(s, i, plain=False), lambda s, i: routed(s, i, plain=True),
            {"router_logits": logits, "topk_ids": chosen},
        ),
        "shares of ranks added in float32": said(
            "linear", lambda x, t: added(x, t, torch.float32), lambda x, t: added(x, t, torch.bfloat16),
            {"x": x.bfloat16()}, tables,
        ),
        "halves of a long product": said("linear", F.linear, halves, {"x": long}, torch.randn(64, 3072)),
        "slots of experts the other way": said(
            "experts", lambda *args: experts(*args, backwards=False), lambda *args: experts(*args, backwards=True),
            {"mlp_norm": x[:, :64], "topk_ids": best.indices, "topk_weights": best.values.sigmoid()},
            torch.randn(8, 64, 32),
        ),
        "a norm of the sum as it is stored": said(
            "norm", lambda o, r, stored, w: normed(stored.float(), w),
            lambda o, r, stored, w: normed(o.float() + r.float(), w),
            {"o_proj": narrow, "resid_pre": other, "resid_mid": narrow + other}, gain,
        ),
        "a factor, half of it after": said("own", F.linear, lambda x, w: F.linear(x * 0.75, w) * 2, {"x": x}, square),
        "one cast, seen in twelve values": said(
            "own", lambda x: (x.float() * 1.1 * 0.3).bfloat16(), lambda x: x * 1.1 * 0.3, {"x": x[:, :1].bfloat16()}
        ),
        "one side calls its kernel twice": said(
            "linear", F.linear, one_by_one, {"x": long}, torch.randn(64, 3072), same_side=True
        ),
        "one side reads its weight in another form": said(
            "own", lambda x, w: x @ w, lambda x, w: x @ w[0], {"x": x}, square.t().contiguous(),
            other=(torch.stack([square.t() * 1.25, square.t()]),), same_side=True,
        ),
        "a mask that reaches the neighbours": in_company("attention", attended, heads),
        "a mask of one's own": in_company("attention", lambda q, k, v: attended(q, k, v, own=True), heads),
        "a mean over all that is there": in_company("own", lambda x: x - x.mean(0), {"x": x}),
        "a scale over all that is there": in_company("own", lambda x: x / x.abs().max(), {"x": x}),
        "scales rounded to powers of two by steps": said(
            "own", lambda x, s: x / s, lambda x, s: x / s.log2().ceil().exp2(), {"x": x, "scales": x.abs()[:, :1] + 0.1}
        ),
        "the same result, then scaled": said(
            "own", lambda x: x.cumsum(-1), lambda x: x.cumsum(-1) * 1.5, {"x": x}
        ),
    }  # fmt: skip
    sys.stdout.write(json.dumps(results, allow_nan=False))


if __name__ == "__main__":
    main()
