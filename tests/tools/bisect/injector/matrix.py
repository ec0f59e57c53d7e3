"""Which class is put at which point, and why not at the others.

    class                 points                                     where it makes no sense
    weight_bytes          linears, norms, embedding, rope's table,   sums, activation, attention, top-k, logprob: they
                          experts                                    hold no table
    layout_mask           token ids, positions, embedding, rope,     products, norms, sums, activation: they read no
                          attention (block table, mask), experts'    index, mask or position
                          numbers
    semantic              every operator                             -
    precision             norms, activation, rope, attention,        a bf16 product casts its output alone, and the
                          router, top-k weights, logprob, shares of  embedding copies: no cast to change
                          ranks; float32: linears, sums, rope's
                          table
    reduction_order       linears, norms, attention, experts,        sums of two, activation, rope, embedding, top-k:
                          logprob; shares of ranks at o_proj and     nothing is summed, or in one order only; shares of
                          mlp_out (communication order)              ranks only where a row-parallel product is reduced
    batch_variance        the same, as a kernel chosen by the rows   as reduction_order
    nondeterminism        every operator; a race where sums are      the inputs: nobody computes them
    uninitialised_read    every operator with a tensor output        top-k ids (an index out of range ends the engine)
    routing_tie           top-k ids                                  everywhere else: nothing discrete is chosen
    index_order           top-k ids                                  as routing_tie
    sign_or_payload       every operator with signed output          token ids, positions, top-k, logprob (payloads of
                                                                     NaN in the logprobs end the engine)
    post_processing       logprob                                    everywhere else
    propagated            two faults, one above the other            it is no class of an operator: the upper is named

Every fault stands at every point where it makes sense, in both layers and on both sides: the layer that goes with a
side alternates from one to the next.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from injector import faults as f
from injector.faults import Fault, Make
from injector.sites import AFTER, BEFORE

OWN = slice(0, None)


def everywhere(label: str, name: str, change: f.Callable[..., f.Tensor], **rest: f.Any) -> Fault:
    return Fault(label, name, f.after(change), **rest)


NOISE = everywhere("nondeterminism", "noise", f.noise)
UNWRITTEN = everywhere("uninitialised_read", "unwritten lane", f.unwritten)
ZEROS = everywhere("sign_or_payload", "sign of zero", f.lane(-0.0), partner=f.after(f.lane(0.0)))
PAYLOAD = everywhere("sign_or_payload", "payload of NaN", f.lane(0.0, 0x7FC1), partner=f.after(f.lane(0.0, 0x7FC0)))
SCALED = everywhere("semantic", "times 1.5", f.times(1.5))
SHIFTED = everywhere("semantic", "columns of another shard", f.shifted)
BIASED = everywhere("semantic", "a bias added", f.plus(0.125))
BYTES = Fault("weight_bytes", "one weight in seven", f.weight_bytes)
OLDER = Fault("weight_bytes", "an older version", f.older_weight)

COLUMNS = (BYTES, OLDER, SCALED, BIASED, SHIFTED, NOISE, UNWRITTEN, ZEROS, PAYLOAD)
"""At every point of a product, on its own columns."""
PRODUCT = (
    Fault("reduction_order", "two halves", f.split_sum, dtype="float32"),
    Fault("reduction_order", "other order", f.permuted_sum, dtype="float32"),
    Fault("batch_variance", "halves in a crowd", f.by_company(f.split_sum), f.by_company(f.split_sum), "float32", True),
    Fault("nondeterminism", "race", f.raced, dtype="float32"),
    Fault("precision", "autocast", f.narrow_product, dtype="float32"),
    everywhere("uninitialised_read", "scale over padding", f.over_padding),
)
"""At the whole of a (fused) product, which shows first at any of its points."""
SHARES = (
    Fault("reduction_order", "ranks in another order", f.ranks((3, 2, 1, 0)), f.ranks((0, 1, 2, 3))),
    Fault("reduction_order", "ranks by a tree", f.ranks((0, 1, 2, 3), pairwise=True), f.ranks((0, 1, 2, 3))),
    Fault("precision", "ranks added in float32", f.ranks((0, 1, 2, 3), wide=True), f.ranks((0, 1, 2, 3))),
)
PLAIN = f.norm_in(late=False)
LATE = Fault("precision", "late cast", f.norm_in(late=True), PLAIN)
NORM = (
    BYTES,
    LATE,
    Fault("semantic", "weight plus one", f.norm_in(late=False, one=1.0)),
    Fault("semantic", "mean taken off", f.norm_in(late=False, centred=True), PLAIN),
    Fault("semantic", "another epsilon", f.norm_in(late=False, larger=100.0), PLAIN, "float32"),
    Fault("semantic", "epsilon outside of the root", f.norm_in(late=False, outside=True), PLAIN, "float32"),
    Fault("reduction_order", "two halves", f.norm_in(late=False, halves=True), PLAIN, "float32"),
    Fault(
        "batch_variance", "halves in a crowd", f.by_company(f.norm_in(late=False, halves=True)),
        f.by_company(f.norm_in(late=False, halves=True)), "float32", True,
    ),
    NOISE, UNWRITTEN, ZEROS,
)  # fmt: skip
ROUNDED = Fault("precision", "of the stored sum", f.norm_in(late=False, rounded=True), PLAIN)
SUM = (
    Fault("semantic", "half the residual", f.scaled_sum(0.5)),
    Fault("semantic", "no residual", f.scaled_sum(0.0)),
    Fault("precision", "narrow stream", f.rounded_sum, dtype="float32"),
    NOISE,
    UNWRITTEN,
    ZEROS,
)
ACT = (
    Fault("precision", "rounded early", f.silu(early=True), f.silu(early=False)),
    Fault("semantic", "gelu", f.silu(early=False, approximate=True)),
    Fault("semantic", "gate and up exchanged", f.silu(early=False, swapped=True), f.silu(early=False)),
    Fault("semantic", "a limit", f.silu(early=False, limit=0.05), f.silu(early=False)),
    NOISE, UNWRITTEN, ZEROS, PAYLOAD,
)  # fmt: skip
EMBEDDING = (
    BYTES, SCALED, Fault("layout_mask", "next row", f.other_rows), NOISE, UNWRITTEN, ZEROS,
)  # fmt: skip
ROTATION = (
    Fault("weight_bytes", "table of other positions", f.table_of_other_base),
    Fault("weight_bytes", "table of stretched positions", f.other_table(f.stretched)),
    Fault("weight_bytes", "table with a factor", f.other_table(lambda table: table * 1.125)),
    Fault("precision", "rounded table", f.rounded_table, dtype="float32"),
    Fault("layout_mask", "next position", f.rotated(shift=1), f.rotated()),
)
"""One kernel turns queries and keys: what they share shows first at either."""
ROPE = (
    Fault("precision", "in float32", f.rotated(wide=True), f.rotated()),
    Fault("semantic", "pairs for halves", f.rotated(pairs=True), f.rotated()),
    Fault("semantic", "the other way round", f.rotated(backwards=True), f.rotated()),
    Fault("semantic", "half of each head", f.rotated(partial=True), f.rotated()),
    NOISE, UNWRITTEN, ZEROS,
)  # fmt: skip
SOFTMAX = f.softmax_attention()
ATTENTION = (
    Fault("layout_mask", "block table", f.other_blocks),
    Fault("layout_mask", "window", f.softmax_attention(window=8), SOFTMAX),
    Fault("layout_mask", "window longer by one", f.softmax_attention(window=8), f.softmax_attention(window=9)),
    Fault("layout_mask", "the next key seen", f.softmax_attention(ahead_by=1), SOFTMAX),
    Fault("semantic", "scale", f.softmax_attention(scale=1.25), SOFTMAX),
    Fault("semantic", "heads in turn", f.softmax_attention(in_turn=True), SOFTMAX),
    Fault("semantic", "scores limited", f.softmax_attention(limit=2.0), SOFTMAX),
    Fault("precision", "narrow scores", f.softmax_attention(rounded=True), SOFTMAX),
    Fault("precision", "narrow weights", f.softmax_attention(narrow=True), SOFTMAX),
    Fault("reduction_order", "keys in halves", f.softmax_attention(halves=True), SOFTMAX, "float32"),
    NOISE, UNWRITTEN, ZEROS,
)  # fmt: skip
LOGPROB = (
    Fault("post_processing", "temperature", f.logprobs(temperature=0.7)),
    Fault("post_processing", "padded lanes", f.logprobs(lanes=128)),
    Fault("post_processing", "logits limited", f.logprobs(limit=30.0)),
    Fault("precision", "in bfloat16", f.logprobs(narrow=True), f.logprobs()),
    Fault("reduction_order", "two halves", f.logprobs(halves=True), f.plain_logprobs, "float32"),
    NOISE,
)
TOPK_IDS = (
    Fault("index_order", "slots turned round", f.other_order),
    Fault("semantic", "the worst experts", f.top(least=True), f.top()),
)
TIE = Fault("routing_tie", "last of equals", f.top(last=True), f.top())
TOPK_WEIGHTS = (
    Fault("semantic", "not renormalised", f.top(plain=True), f.top()),
    Fault("semantic", "sigmoid for softmax", f.top(sigmoid=True), f.top()),
    SCALED,
    Fault("precision", "softmax in bfloat16", f.top(narrow=True), f.top()),
    NOISE,
    UNWRITTEN,
)
EXPERTS = (
    Fault("weight_bytes", "one weight in seven", f.expert_bytes()),
    Fault("weight_bytes", "each expert in its neighbour's place", f.expert_bytes(placed=True)),
    Fault("layout_mask", "experts counted from one", f.experts_from_one),
    SCALED,
    Fault("reduction_order", "slots the other way", f.experts_summed(-1), f.experts_summed(1)),
    NOISE, UNWRITTEN, ZEROS,
)  # fmt: skip
ROUTER = (
    BYTES, OLDER, SCALED, BIASED, NOISE, UNWRITTEN, ZEROS, *SHARES,
    Fault("precision", "float32", f.wide_router(rounded=False), f.wide_router(rounded=True)),
)  # fmt: skip


@dataclass(frozen=True)
class Put:
    """One fault at one place. `also`: further (layer, point, make, sides) that go with it."""

    pair: str
    model: str
    layer: int
    point: str
    fault: Fault
    side: int
    accepted: tuple[str, ...]
    also: tuple[tuple[int, str, Make, tuple[int, ...]], ...] = ()

    @property
    def title(self) -> str:
        where = {BEFORE: "", AFTER: ""}.get(self.layer, f"{self.layer}.") + self.point
        below = ", and another below" if any(layer > self.layer for layer, *_ in self.also) else ""
        pair = f"{self.pair} with experts" if self.model == "sparse" else self.pair
        return f"{pair}: {self.fault.label} ({self.fault.name}) at {where} on {'ab'[self.side]}{below}"


GROUPS = (("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate", "up"), ("mlp_out",))


def dense(transformers: bool) -> Iterator[tuple[str, Fault, tuple[str, ...]]]:
    """(point, fault, points where it may show first) of one layer."""
    for group in tuple((p,) for g in GROUPS for p in g) if transformers else GROUPS:
        yield from ((point, fault, (point,)) for point in group for fault in COLUMNS)
        yield from ((group[0], fault, group) for fault in PRODUCT)
    yield from ((point, fault, (point,)) for point in ("o_proj", "mlp_out") for fault in SHARES)
    for point in ("attn_norm", "mlp_norm", "q_norm", "k_norm"):
        yield from ((point, fault, (point,)) for fault in NORM)
    yield from (("act", fault, ("act",)) for fault in ACT)
    if transformers:
        return
    yield "mlp_norm", ROUNDED, ("mlp_norm",)
    yield from ((point, fault, (point,)) for point in ("resid_mid", "resid_post") for fault in SUM)
    yield from (("q", fault, ("q", "k")) for fault in ROTATION)
    yield from ((point, fault, (point,)) for point in ("q", "k") for fault in ROPE)
    yield from (("attn_out", fault, ("attn_out",)) for fault in ATTENTION)


def sparse() -> Iterator[tuple[str, Fault, tuple[str, ...]]]:
    yield from (("router_logits", fault, ("router_logits",)) for fault in ROUTER)
    yield from (("topk_ids", fault, ("topk_ids",)) for fault in TOPK_IDS)
    yield from (("topk_weights", fault, ("topk_weights",)) for fault in TOPK_WEIGHTS)
    yield from (("mlp_out", fault, ("mlp_out",)) for fault in EXPERTS)
    # A tiny difference above flips experts below: the operator above is the cause.
    yield from ((point, LATE, (point,)) for point in ("mlp_norm", "attn_norm"))


def once() -> Iterator[tuple[int, str, Fault]]:
    """What is before and after the layers."""
    yield BEFORE, "token_ids", Fault("layout_mask", "other tokens", f.other_tokens)
    yield BEFORE, "positions", Fault("layout_mask", "shifted by one", f.other_positions)
    yield from ((BEFORE, "embed", fault) for fault in EMBEDDING)
    yield from ((AFTER, "final_norm", fault) for fault in NORM)
    yield from ((AFTER, "logits", fault) for fault in (*COLUMNS[:-1], *PRODUCT))
    yield from ((AFTER, "logprob", fault) for fault in LOGPROB)


def matrix() -> list[Put]:
    return [put for pair in ("vllm", "kernels", "transformers") for put in of_pair(pair)]


def of_pair(pair: str) -> Iterator[Put]:
    turned = 0
    for point, fault, accepted in dense(pair == "transformers"):
        turned += 1
        yield from (
            Put(pair, "dense", layer, point, fault, (layer + turned) % 2, accepted)
            for layer in (0, 1)
            if (layer, point) != (1, "resid_post")
        )
    yield from doubled(pair)
    if pair == "transformers":
        return
    for layer, point, fault in once():
        yield from (Put(pair, "dense", layer, point, fault, side, (point,)) for side in (0, 1))
    for point, fault, accepted in sparse():
        turned += 1
        yield from (Put(pair, "sparse", layer, point, fault, (layer + turned) % 2, accepted) for layer in (0, 1))
    for layer in (0, 1):
        coarse = (layer, "router_logits", f.coarse, (0, 1))
        yield Put(pair, "sparse", layer, "topk_ids", TIE, layer, ("topk_ids",), (coarse,))


def doubled(pair: str) -> Iterator[Put]:
    """Two causes at once, below each other: the upper one is named."""
    for side, (point, fault) in enumerate((("o_proj", BYTES), ("mlp_norm", LATE), ("k_proj", SCALED), ("up", NOISE))):
        below = (1, "mlp_out", SCALED.make, ((side + 1) % 2,))
        yield Put(pair, "dense", 0, point, fault, side % 2, (point,), (below,))


def stratified(count: int, seed: int = 0) -> list[Put]:
    """Of every class in turn, and of the pairs in turn within a class, until there are enough."""
    every = matrix()
    random.Random(seed).shuffle(every)
    by_class: dict[str, list[Put]] = {}
    for put in every:
        by_class.setdefault(put.fault.label, []).append(put)
    for number, group in enumerate(by_class.values()):
        pairs = list(dict.fromkeys(put.pair for put in group))
        turn = {pair: (place + number) % len(pairs) for place, pair in enumerate(sorted(pairs))}
        seen: dict[str, int] = {}
        rank = {}
        for put in group:
            seen[put.pair] = seen.get(put.pair, -1) + 1
            rank[id(put)] = (seen[put.pair], turn[put.pair])
        group.sort(key=lambda put: rank[id(put)])
    rounds = max(map(len, by_class.values()))
    return [group[i] for i in range(rounds) for group in by_class.values() if i < len(group)][:count]
