"""Public bug reports of this kind and neighbours of each, rebuilt from their descriptions, as a `python` side.

A case is two ways to compute one operator of a small decoder layer, `a` and `b`; everything around it is the same.
`given` makes what the operator reads of the hidden state, by the names of the points that are recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from reported_case import Case, gate, part
from reported_operators import (
    BF,
    HEADS,
    SIZE,
    VOCAB,
    WIDTH,
    Way,
    attention,
    chosen,
    conv,
    conv_steps,
    delta_chunk,
    delta_steps,
    drawn,
    gated,
    gelu,
    inv_freq,
    logprob,
    logprob_by_blocks,
    mrope,
    norm,
    norm_by_halves,
    norm_of,
    payload,
    permuted,
    quantised,
    rope,
    scan,
    steps,
)
from reported_steps import STEPS
from torch import Tensor
from torch.nn import functional as F

W = (1 + drawn(WIDTH, seed=1, scale=0.3)).to(BF)
WIDE_W = 1 + drawn(WIDTH, seed=1, scale=0.3)
SQUARE = drawn(WIDTH, WIDTH, seed=2)
NORM = {"resid_pre": lambda h, p: part(1, WIDTH, BF)(h, p)}
NORM_WIDE = {"resid_pre": part(1, WIDTH)}
ACT = {"gate": lambda h, p: 4 * part(2, WIDTH, BF)(h, p), "up": lambda h, p: 4 * part(3, WIDTH, BF)(h, p)}
ACT_WIDE = {"gate": lambda h, p: 4 * part(2, WIDTH)(h, p), "up": lambda h, p: 4 * part(3, WIDTH)(h, p)}
ROPE = {"q_norm": part(4, WIDTH), "positions": lambda h, p: p}
SCAN = {"scan.in0": part(5, WIDTH), "scan.in1": gate(0.4, 0.9, 6)}
DELTA = {
    "delta.in0": part(5, SIZE),
    "delta.in1": part(6, SIZE),
    "delta.in2": gate(0.2, 0.9, 7),
    "delta.in3": gate(0.7, 0.99, 8),
}
QKV = {"q": part(5, WIDTH), "k": part(6, WIDTH), "v": part(7, WIDTH)}
ROUTER = {"mlp_norm": part(1, WIDTH)}
LOGITS: dict[str, Any] = {}
SILU = F.silu
PLAIN = [n % 3 for n in range(SIZE // 2)]
TAPS = drawn(WIDTH, 4, seed=3)

CASES: dict[str, Case] = {
    "1 norm casts before the weight": Case("attn_norm", "precision", NORM, norm, norm_of(late=True), (W,)),
    "1 eps outside of the root": Case(
        "attn_norm", "semantic", NORM_WIDE, norm, norm_of(outside=True, eps=1e-5), (WIDE_W,), says="even in float64"
    ),
    "1 another eps": Case("attn_norm", "semantic", NORM_WIDE, norm, norm_of(eps=1e-5), (WIDE_W,), says="1e-06"),
    "1 weight in float32 and rounded": Case(
        "attn_norm",
        "precision",
        NORM,
        norm_of(late=True),
        norm_of(late=True),
        (WIDE_W,),
        (WIDE_W.to(BF),),
        says="table",
    ),
    "1 one plus the weight": Case("attn_norm", "semantic", NORM_WIDE, norm, lambda x, w: norm(x, 1 + w), (WIDE_W,)),
    "1 sum of squares by halves": Case("attn_norm", "reduction_order", NORM_WIDE, norm, norm_by_halves, (WIDE_W,)),
    "2 gate as bmm with another order": Case(
        "router_logits", "reduction_order", ROUTER, lambda x, w: x @ w.t(), permuted, (SQUARE,), after=chosen
    ),
    "2 gate in bfloat16": Case(
        "router_logits",
        "precision",
        {"mlp_norm": part(1, WIDTH, BF)},
        lambda x, w: F.linear(x, w).float(),
        lambda x, w: F.linear(x.float(), w.float()),
        (SQUARE.to(BF),),
        after=chosen,
    ),
    "2 gate with a bias on one side": Case(
        "router_logits", "semantic", ROUTER, F.linear, lambda x, w: F.linear(x, w) + 0.125, (SQUARE,), after=chosen
    ),
    "2 tie broken the other way": Case(
        "topk_ids",
        "routing_tie",
        {"router_logits": lambda h, p: torch.tensor([[1.0, 2.0, 2.0, 0.5]]).repeat(len(h), 1)},
        lambda s: s.topk(1).indices,
        lambda s: 3 - s.flip(-1).topk(1).indices,
        says="exactly equal scores",
    ),
    "3 scan by chunks and by steps": Case("scan", "reduction_order", SCAN, scan(4), steps, says="another order"),
    "3 scan by chunks of other sizes": Case("scan", "reduction_order", SCAN, scan(4), scan(8), says="another order"),
    "3 state lost between chunks": Case(
        "scan", "unknown", SCAN, scan(4), scan(4, forgets=True), says="other functions"
    ),
    "3 state kept in bfloat16": Case("scan", "precision", SCAN, steps, lambda x, a: steps(x, a, narrow=True)),
    "3 convolution and its steps": Case(
        "conv", "unknown", {"conv.in0": part(5, WIDTH)}, conv, conv_steps, (TAPS,), says="the same function"
    ),
    "3 convolution state lost": Case(
        "conv",
        "unknown",
        {"conv.in0": part(5, WIDTH)},
        conv_steps,
        lambda x, w: conv_steps(x, w, forgets=5),
        (TAPS,),
        says="other functions",
    ),
    "4 delta rule by chunks and by steps": Case(
        "delta", "unknown", DELTA, delta_steps, delta_chunk(8), says="the same function"
    ),
    "4 delta rule by chunks of other sizes": Case(
        "delta", "unknown", DELTA, delta_chunk(16), delta_chunk(8), says="the same function"
    ),
    "10 mix not transposed": Case(
        "mix", "semantic", {"mix.in0": part(9, 4)}, lambda x, m: x @ m, lambda x, m: x @ m.t(), (drawn(4, 4, seed=4),)
    ),
    "10 mix of eight not transposed": Case(
        "mix",
        "semantic",
        {"mix.in0": part(9, 8)},
        lambda x, m: torch.einsum("ti,ij->tj", x, m),
        lambda x, m: torch.einsum("ti,ji->tj", x, m),
        (drawn(8, 8, seed=4),),
    ),
    "10 mix of heads not transposed": Case(
        "mix",
        "semantic",
        {"mix.in0": part(5, WIDTH)},
        lambda x, m: torch.einsum("tis,ij->tjs", x.reshape(-1, HEADS, SIZE), m).flatten(1),
        lambda x, m: torch.einsum("tis,ji->tjs", x.reshape(-1, HEADS, SIZE), m).flatten(1),
        (drawn(4, 4, seed=4),),
    ),
    "11 padded lanes": Case(
        "logprob", "post_processing", LOGITS, logprob, lambda y, t: logprob(y, t, lanes=128), says="128 lanes"
    ),
    "11 padded lanes of minus infinity": Case(
        "logprob", "equal", LOGITS, logprob, lambda y, t: logprob(y, t, lanes=128, fill=float("-inf"))
    ),
    "11 temperature": Case(
        "logprob", "post_processing", LOGITS, logprob, lambda y, t: logprob(y, t, temperature=0.7), says="0.7"
    ),
    "11 other temperature and lanes": Case(
        "logprob", "post_processing", LOGITS, logprob, lambda y, t: logprob(y, t, temperature=1.3), says="1.3"
    ),
    "11 log-sum-exp by blocks": Case(
        "logprob", "reduction_order", LOGITS, logprob_by_blocks(VOCAB), logprob_by_blocks(40)
    ),
    "11 logits rounded": Case("logprob", "precision", LOGITS, logprob, lambda y, t: logprob(y.to(BF), t)),
    "15 inv_freq in bfloat16": Case(
        "q", "precision", ROPE, rope, rope, (inv_freq(),), (inv_freq().to(BF).float(),), says="bfloat16"
    ),
    "15 inv_freq in float16": Case(
        "q", "precision", ROPE, rope, rope, (inv_freq(),), (inv_freq().half().float(),), says="float16"
    ),
    "15 another theta": Case("q", "weight_bytes", ROPE, rope, rope, (inv_freq(),), (inv_freq(5e5),), says="[8]"),
    "15 cosines in bfloat16": Case(
        "q", "precision", ROPE, rope, lambda x, p, t: rope(x, p, t, narrow=True), (inv_freq(),)
    ),
    "16 sections of mrope permuted": Case(
        "q", "unknown", ROPE, mrope(PLAIN), mrope(sorted(PLAIN)), (inv_freq(),), says="other functions"
    ),
    "16 pairs beside each other and halves apart": Case(
        "q",
        "unknown",
        ROPE,
        rope,
        lambda x, p, t: rope(x, p, t, interleaved=True),
        (inv_freq(),),
        says="other functions",
    ),
    "30 scales as powers of two": Case(
        "quant",
        "precision",
        {"quant.in0": part(5, WIDTH)},
        quantised(power_of_two=False),
        quantised(power_of_two=True),
        says="power of two",
    ),
    "30 scales of groups as powers of two": Case(
        "quant",
        "precision",
        {"quant.in0": part(5, WIDTH)},
        quantised(power_of_two=False, group=16),
        quantised(power_of_two=True, group=16),
        says="power of two",
    ),
    "30 scales kept apart in other layouts": Case(
        "quant.scale",
        "precision",
        {"quant.in0": part(5, WIDTH)},
        payload(power_of_two=False),
        payload(power_of_two=True),
        layouts=("rows", "transposed"),
        says="power of two",
    ),
    "30 the same scales in other layouts": Case(
        "quant.scale",
        "equal",
        {"quant.in0": part(5, WIDTH)},
        payload(power_of_two=True),
        payload(power_of_two=True),
        layouts=("rows", "transposed"),
    ),
    "30 groups of another size": Case(
        "quant",
        "unknown",
        {"quant.in0": part(5, WIDTH)},
        quantised(power_of_two=False, group=16),
        quantised(power_of_two=False, group=32),
    ),
    "34 silu rounded early": Case("act", "precision", ACT, gated(SILU), gated(SILU, early=True)),
    "34 gelu rounded early": Case("act", "precision", ACT, gated(gelu("tanh")), gated(gelu("tanh"), early=True)),
    "34 gelu by its other formula": Case(
        "act", "semantic", ACT_WIDE, gated(gelu("none")), gated(gelu("tanh")), says="tanh"
    ),
    "34 clamp on one side": Case("act", "semantic", ACT_WIDE, gated(SILU), gated(SILU, limit=2.0)),
    "34 another clamp": Case("act", "semantic", ACT_WIDE, gated(SILU, limit=3.0), gated(SILU, limit=2.0), says="2.0"),
    "attention by blocks and whole": Case(
        "attn_out",
        "reduction_order",
        QKV,
        attention,
        lambda q, k, v: attention(q, k, v, keys=4),
        says="another order",
    ),
    "attention by blocks of other sizes": Case(
        "attn_out",
        "reduction_order",
        QKV,
        lambda q, k, v: attention(q, k, v, keys=4),
        lambda q, k, v: attention(q, k, v, keys=8),
        says="another order",
    ),
    "attention over the keys from the last": Case(
        "attn_out",
        "reduction_order",
        QKV,
        attention,
        lambda q, k, v: attention(q, k, v, backwards=True),
        says="another order",
    ),
    "attention with another scale": Case(
        "attn_out", "semantic", QKV, attention, lambda q, k, v: attention(q * 1.0625, k, v)
    ),
    "scale of two per cent": Case(
        "o_proj",
        "semantic",
        {"attn_out": part(5, WIDTH)},
        lambda x, w: x @ w.t(),
        lambda x, w: x @ (w * 1.02).t(),
        (SQUARE,),
    ),
    "one weight of another value": Case(
        "o_proj",
        "weight_bytes",
        {"attn_out": part(5, WIDTH)},
        F.linear,
        F.linear,
        (SQUARE,),
        (SQUARE + (torch.arange(WIDTH) == 7) * 0.01,),
    ),
}
"""By the number of the row in the list of reports; the class is what the experiments can show, and no more."""
CASES |= STEPS


@dataclass
class Net:
    """embed -> the case's inputs -> its operator -> a projection -> norm -> head; `record` is the observer's."""

    case: Case
    side: str
    record: Any = None
    embed: Tensor = field(default_factory=lambda: drawn(VOCAB, WIDTH, seed=11))
    head: Tensor = field(default_factory=lambda: drawn(VOCAB, WIDTH, seed=12, scale=0.3))
    down: dict[int, Tensor] = field(default_factory=dict)

    def hidden(self, tokens: Tensor) -> Tensor:
        case = self.case
        h, positions = self.embed[tokens], torch.arange(len(tokens))
        self.seen(-1, "embed", h)
        if case.out == "logprob":
            return h
        inputs = [make(h, positions) for make in case.given.values()]
        for name, value in zip(case.given, inputs, strict=True):
            if name != "positions":
                self.seen(0, name, value)
        made = self.way(*inputs, *self.tables)
        if case.layouts is None:
            self.seen(0, case.out, made)
        else:
            made = self.quantised(*made)
        for name, value in (case.after(made) if case.after else {}).items():
            self.seen(0, name, value)
        return h + self.projected(made)

    def seen(self, layer: int, point: str, value: Tensor) -> None:
        if self.record is not None:
            self.record(layer, point, value)

    def quantised(self, payload: Tensor, scale: Tensor) -> Tensor:
        """The same rows as they were, from payload and scales; a kernel may want the scales the other way round."""
        assert self.case.layouts is not None
        layout = self.case.layouts[self.side == "b"]
        held = scale.t().contiguous() if layout == "transposed" else scale
        if self.record is not None:
            self.record.quantised(0, "quant", payload, held, groups=scale.shape[1], layout=layout)
        return (payload.float().unflatten(1, (scale.shape[1], -1)) * scale[..., None]).flatten(1)

    @property
    def way(self) -> Way:
        return self.case.a if self.side == "a" else self.case.b

    @property
    def tables(self) -> tuple[Tensor, ...]:
        return self.case.tables if self.side == "a" or self.case.other is None else self.case.other

    def projected(self, made: Tensor) -> Tensor:
        width = made.shape[1]
        weight = self.down.setdefault(width, drawn(WIDTH, width, seed=13, scale=width**-0.5))
        return F.linear(made.float(), weight)

    def logprobs(self, tokens: Tensor) -> Tensor:
        """[T - 1]: of each token from the second on."""
        h = self.hidden(tokens)
        self.seen(1 << 20, "final_norm", h)
        logits = F.linear(h, self.head)
        self.seen(1 << 20, "logits", logits)
        way = self.way if self.case.out == "logprob" else logprob
        return way(logits[:-1], tokens[1:, None])[:, 0]


def load(path: str, options: dict[str, Any]) -> Net:
    return Net(CASES[options["case"]], options["side"])


def watch(state: Net, record: Any) -> Callable[[], None]:
    state.record = record
    return lambda: setattr(state, "record", None)


def score(state: Net, sequences: Any, mode: str) -> list[Tensor]:
    with torch.no_grad():
        return [state.logprobs(torch.tensor(s.tokens))[s.response_start - 1 :] for s in sequences]
