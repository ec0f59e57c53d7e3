"""The causal rule on digests alone: equal inputs and another output, or nobody is blamed."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitgate.tools.bisect.cause import localise
from bitgate.tools.bisect.graph import AFTER, BEFORE, LAYER, Point, label, mandatory
from bitgate.tools.bisect.observation import Observation, Series

KEYS = np.asarray([[s, p] for s in (0, 1) for p in range(5)], np.int64)
DENSE = [row.name for row in LAYER if row.name not in ("router_logits", "topk_ids", "topk_weights", "expert_out")]


def observed(layers: int = 2, drop: tuple[Point, ...] = (), **changed: Any) -> Observation:
    """Every point equal but those of `changed` (name `L_point` or `point`): row numbers with another digest."""
    points: list[Point] = [(BEFORE, n) for n in ("token_ids", "positions", "embed")]
    points += [(layer, name) for layer in range(layers) for name in DENSE]
    points += [(AFTER, n) for n in ("final_norm", "head_input", "logits", "logprob")]
    seen = Observation()
    for number, point in enumerate(points):
        if point in drop:
            continue
        digest = np.stack([np.arange(10), np.full(10, number)], 1).astype(np.uint64)
        digest[changed.get(f"{label(point)}".replace("layers.", "l").replace(".", "_"), [])] += 1000
        seen.points[point] = Series(KEYS, digest, "bfloat16", 8)
        seen.order[point] = number
    return seen


def cause_of(**changed: Any) -> Any:
    return localise(observed(), observed(**changed)).cause


def test_equal_observations_are_clean_and_complete() -> None:
    found = localise(observed(), observed())
    assert (found.different, found.cause, found.missing) == ({}, None, ())


def test_the_first_operator_with_equal_inputs_is_the_culprit_and_the_rest_is_propagated() -> None:
    rows = [3, 7]
    cause = cause_of(l0_o_proj=rows, l0_resid_mid=rows, l1_attn_norm=rows, logprob=rows)
    assert (cause.state, label(cause.node.point), cause.row) == ("culprit", "layers.0.o_proj", (1, 2))


def test_attention_is_not_blamed_when_an_earlier_key_of_the_sequence_differs() -> None:
    found = cause_of(l0_k=[1], l0_attn_out=[1, 2, 3])
    assert label(found.node.point) == "layers.0.k"
    cause = cause_of(l0_v_proj=[0], l0_v=[0], l0_attn_out=[3])
    assert label(cause.node.point) == "layers.0.v_proj"


def test_attention_is_blamed_when_only_later_keys_differ() -> None:
    cause = cause_of(l1_attn_out=[5])
    assert label(cause.node.point) == "layers.1.attn_out"


def test_a_point_seen_on_one_side_only_is_part_of_the_operator_around_it() -> None:
    gone = ((0, "attn_norm"),)
    found = localise(observed(drop=gone), observed(drop=gone, l0_q_proj=[2]))
    assert found.cause is not None
    assert (label(found.cause.node.point), found.cause.node.through) == ("layers.0.q_proj", gone)
    assert found.missing == gone
    assert found.status[0, "attn_norm"] == "absorbed"


def test_positions_that_differ_are_the_cause_before_any_operator() -> None:
    cause = cause_of(positions=[4], l0_q=[4], l0_k=[4])
    assert (cause.node.kind, label(cause.node.point)) == ("input", "positions")


def test_an_own_point_without_its_inputs_is_no_culprit() -> None:
    a, b = observed(), observed()
    for side, digest in ((a, 1), (b, 2)):
        side.points[0, "mix"] = Series(KEYS, np.full((10, 2), digest, np.uint64), "float32", 4)
        side.order[0, "mix"] = 99
    found = localise(a, b)
    assert found.cause is not None and found.cause.state == "input_not_captured"


def test_an_own_point_with_equal_inputs_is_the_culprit() -> None:
    a, b = observed(), observed()
    for side, digest in ((a, 1), (b, 2)):
        side.points[0, "mix.in0"] = Series(KEYS, np.zeros((10, 2), np.uint64), "float32", 4)
        side.points[0, "mix"] = Series(KEYS, np.full((10, 2), digest, np.uint64), "float32", 4)
        side.order |= {(0, "mix.in0"): 98, (0, "mix"): 99}
    found = localise(a, b)
    assert found.cause is not None and (found.cause.state, found.cause.node.point) == ("culprit", (0, "mix"))


def test_other_experts_downstream_are_not_the_cause() -> None:
    a, b = observed(), observed(l0_mlp_norm=[2])
    for side, flipped in ((a, 0), (b, 7)):
        for name in ("router_logits", "topk_ids"):
            digest = np.zeros((10, 2), np.uint64)
            digest[2] = flipped
            side.points[1, name], side.order[1, name] = Series(KEYS, digest, "int64", 2), 200
    assert label(localise(a, b).cause.node.point) == "layers.0.mlp_norm"  # type: ignore[union-attr]


def test_another_dtype_is_a_difference_with_a_note() -> None:
    a, b = observed(), observed(l0_act=list(range(10)))
    series = b.points[0, "act"]
    b.points[0, "act"] = Series(series.keys, series.digest, "float32", 8)
    found = localise(a, b)
    assert found.compared[0, "act"].note == "bfloat16[8] against float32[8]"


def test_mandatory_points_name_the_dense_or_the_sparse_set() -> None:
    assert (0, "act") in mandatory([], 1)
    assert (0, "topk_ids") in mandatory([(0, "router_logits")], 1)
    assert (0, "act") not in mandatory([(0, "router_logits")], 1)
