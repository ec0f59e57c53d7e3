"""What is computed from what: the semantic points of a decoder, in the order of the data, one row a point."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

BEFORE: Final = -1
AFTER: Final = 1 << 20
"""Layers of the embedding, and of what follows the last decoder layer; as in the worker's probes/taps.py."""

Point = tuple[int, str]


@dataclass(frozen=True)
class Row:
    """One point. `context`: parents of which all earlier rows of the sequence count, as attention reads them."""

    name: str
    kind: str
    parents: tuple[str, ...]
    context: tuple[str, ...] = ()


LAYER: Final = (
    Row("resid_pre", "residual", ("^resid_post",)),
    Row("attn_norm", "norm", ("resid_pre",)),
    Row("q_proj", "linear", ("attn_norm",)),
    Row("k_proj", "linear", ("attn_norm",)),
    Row("v_proj", "linear", ("attn_norm",)),
    Row("q_norm", "norm", ("q_proj",)),
    Row("k_norm", "norm", ("k_proj",)),
    Row("q", "rope", ("q_norm", "@positions")),
    Row("k", "rope", ("k_norm", "@positions")),
    Row("v", "residual", ("v_proj",)),
    Row("attn_out", "attention", ("q",), ("k", "v")),
    Row("conv_out", "convolution", ("attn_norm",), ("attn_norm",)),
    Row("ssm_out", "recurrence", ("conv_out", "attn_norm"), ("conv_out", "attn_norm")),
    Row("o_proj", "linear", ("attn_out",)),
    Row("resid_mid", "add", ("resid_pre", "o_proj")),
    Row("mlp_norm", "norm", ("resid_mid",)),
    Row("gate", "linear", ("mlp_norm",)),
    Row("up", "linear", ("mlp_norm",)),
    Row("act", "act", ("gate", "up")),
    Row("router_logits", "router", ("mlp_norm",)),
    Row("topk_ids", "topk", ("router_logits",)),
    Row("topk_weights", "topk", ("router_logits", "topk_ids")),
    Row("expert_out", "experts", ("mlp_norm", "topk_ids", "topk_weights")),
    Row("mlp_out", "linear", ("act",)),
    Row("resid_post", "add", ("resid_mid", "mlp_out")),
)
CLASSES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "embedding": ("embed",),
        "attention": ("attn_norm", "q", "k", "v", "attn_out", "o_proj", "resid_mid"),
        "recurrence": ("attn_norm", "conv_out", "ssm_out", "o_proj", "resid_mid"),
        "dense": ("mlp_norm", "gate", "up", "act", "mlp_out", "resid_post"),
        "experts": ("mlp_norm", "router_logits", "topk_ids", "topk_weights", "mlp_out", "resid_post"),
        "head": ("final_norm", "logits", "logprob"),
    }
)
"""Operator class -> the points that coverage is measured on. A layer has one mixer (attention or recurrence) and one
MLP (dense or experts), told apart by what either side shows of it."""
HEAD: Final = (
    Row("final_norm", "norm", ("^resid_post",)),
    Row("head_input", "residual", ("final_norm",)),
    Row("logits", "linear", ("head_input",)),
    Row("logprob", "logprob", ("logits",)),
)
START: Final = (
    Row("token_ids", "input", ()),
    Row("positions", "input", ()),
    Row("embed", "embedding", ("token_ids",)),
)
ROWS: Final[Mapping[str, Row]] = MappingProxyType({row.name: row for row in (*START, *LAYER, *HEAD)})
_RANK: Final = {row.name: number for number, row in enumerate((*START, *LAYER, *HEAD))}
INPUT_SUFFIX: Final = ".in"
PARTS: Final = ("scale", "payload", "experts")
MIXED: Final = ("mlp_norm", "topk_ids", "topk_weights", "expert_out")
"""What the output of a layer of experts is made of: shared experts read the norm too."""


@dataclass(frozen=True)
class Node:
    """A point both sides show, with the nearest shown points that it is computed from.

    `through`: points between them that are not shown: the operator is the whole way. `lost`: a parent of which
    nothing is shown, so that its equality is not known.
    """

    point: Point
    kind: str
    parents: tuple[Point, ...]
    context: tuple[Point, ...]
    through: tuple[Point, ...] = ()
    lost: tuple[Point, ...] = ()


def nodes(shown: Collection[Point], order: Mapping[Point, int]) -> list[Node]:
    """Every shown point, topologically. Points that the table does not know follow the order in which they passed."""
    depth = max((layer for layer, _ in shown if layer < AFTER), default=BEFORE)
    return [_node(point, shown, depth) for point in sorted(shown, key=lambda p: _place(p, order))]


def _place(point: Point, order: Mapping[Point, int]) -> tuple[int, int, int]:
    layer, name = point
    if name in _RANK:
        return (layer, _RANK[name], 0)
    # An unknown point stands where it passed, between the known ones of its layer.
    before = [_RANK[n] for (at, n), i in order.items() if at == layer and n in _RANK and i < order.get(point, 0)]
    return (layer, max(before, default=-1), 1 + order.get(point, 0))


def _node(point: Point, shown: Collection[Point], depth: int) -> Node:
    layer, name = point
    row = ROWS.get(name)
    if row is None:
        return _unknown(point, shown, depth)
    if name == "o_proj" and (layer, "ssm_out") in shown:
        # The gate of a recurrence is made of what the layer reads, past the recurrence.
        row = replace(row, parents=("ssm_out", "attn_norm"))
    through: list[Point] = []
    lost: list[Point] = []
    parents = tuple(
        dict.fromkeys(p for parent in row.parents for p in _nearest(layer, parent, shown, depth, through, lost))
    )
    if name == "mlp_out" and (layer, "topk_ids") in shown:
        parents = tuple(p for p in ((layer, n) for n in MIXED) if p in shown)
        # An engine with all experts in one kernel shows no single rows: they lie inside of it.
        through, lost = [] if (layer, "expert_out") in shown else [(layer, "expert_out")], []
    context = tuple(
        dict.fromkeys(p for parent in row.context for p in _nearest(layer, parent, shown, depth, through, lost))
    )
    kind = "experts" if name == "mlp_out" and (layer, "topk_ids") in shown else row.kind
    return Node(point, kind, parents, context, tuple(dict.fromkeys(through)), tuple(dict.fromkeys(lost)))


def _unknown(point: Point, shown: Collection[Point], depth: int) -> Node:
    """A point of the user's own: its parents are what he recorded as `NAME.in…`, or those of the point it is a part of.

    Parts are `.scale` and `.payload` of a quantised point (the payload is made with the scale) and `.experts`, whose
    rows a point holds.
    """
    layer, name = point
    if INPUT_SUFFIX in name:
        return Node(point, "input", (), ())
    whole, part = whole_of(point)[1], name.rpartition(".")[2]
    if whole in ROWS:
        return replace(_node((layer, whole), shown, depth), point=point, kind="own")
    prefix = f"{whole}{INPUT_SUFFIX}"
    parents = tuple(sorted(p for p in shown if p[0] == layer and p[1].startswith(prefix)))
    scale = (layer, f"{whole}.scale")
    if part == "payload" and scale in shown:
        parents = (*parents, scale)
    # Whether it mixes rows is not known: earlier rows of what it reads count as read.
    return Node(point, "own", parents, parents, lost=() if parents else ((layer, prefix),))


def whole_of(point: Point) -> Point:
    """The point that this is a part of; itself if it is none."""
    layer, name = point
    whole, _, part = name.rpartition(".")
    return (layer, whole) if part in PARTS else point


def _nearest(
    layer: int, parent: str, shown: Collection[Point], depth: int, through: list[Point], lost: list[Point]
) -> Iterator[Point]:
    at, name = _resolved(layer, parent, depth)
    if (at, name) in shown:
        yield (at, name)
        return
    row = ROWS[name]
    if row.kind == "input":
        return
    if not row.parents:
        lost.append((at, name))
        return
    if at == BEFORE:
        yield from (p for n in row.parents for p in _nearest(BEFORE, n, shown, depth, through, lost))
        return
    if not _optional(name):
        through.append((at, name))
    for grandparent in (*row.parents, *row.context):
        yield from _nearest(at, grandparent, shown, depth, through, lost)


def _optional(name: str) -> bool:
    """Points that an architecture may not have at all: passing them by is no loss."""
    return name in ("q_norm", "k_norm", "head_input", "resid_pre", "v_proj")


def _resolved(layer: int, parent: str, depth: int) -> Point:
    if parent.startswith("@"):
        return BEFORE, parent[1:]
    if parent.startswith("^"):
        above = depth if layer == AFTER else layer - 1
        return (BEFORE, "embed") if above < 0 else (above, parent[1:])
    return layer, parent


def mandatory(seen: Collection[Point], layers: int) -> list[Point]:
    """The points that coverage is measured on, for a model of `layers` decoder layers."""
    wanted: list[Point] = [(BEFORE, name) for name in CLASSES["embedding"]]
    for layer in range(layers):
        wanted += [(layer, name) for kind in classes_of(layer, seen) for name in CLASSES[kind]]
    return wanted + [(AFTER, name) for name in CLASSES["head"]]


def classes_of(layer: int, seen: Collection[Point]) -> tuple[str, str]:
    """The layer's mixer and its MLP."""
    mixer = "recurrence" if _shows(layer, ("conv_out", "ssm_out"), seen) else "attention"
    return mixer, "experts" if _shows(layer, ("router_logits", "topk_ids", "topk_weights"), seen) else "dense"


def _shows(layer: int, names: Collection[str], seen: Collection[Point]) -> bool:
    return any((layer, name) in seen for name in names)


def label(point: Point) -> str:
    layer, name = point
    return name if layer in (BEFORE, AFTER) else f"layers.{layer}.{name}"
