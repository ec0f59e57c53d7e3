"""The causal rule on digests alone: equal inputs and another output, or nobody is blamed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bitgate.tools.bisect.cause import localise
from bitgate.tools.bisect.conclude import Outcome, reasons_of
from bitgate.tools.bisect.graph import AFTER, BEFORE, CLASSES, LAYER, ROWS, Point, label, mandatory
from bitgate.tools.bisect.observation import Observation, Series

KEYS = np.asarray([[s, p] for s in (0, 1) for p in range(5)], np.int64)
SPARSE = ("router_logits", "topk_ids", "topk_weights", "expert_out")
RECURRENT = ("conv_out", "ssm_out")
DENSE = [row.name for row in LAYER if row.name not in SPARSE + RECURRENT]


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


def test_a_side_with_another_layer_blames_no_operator_after_the_last() -> None:
    after = {"final_norm": [2], "head_input": [2], "logits": [2], "logprob": [2]}
    found = localise(observed(layers=2), observed(layers=3, **after))
    assert found.cause is not None and found.cause.state == "input_not_captured"
    assert found.cause.node.lost == ((2, "resid_post"),)
    assert (2, "attn_norm") in found.missing


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


def with_experts(*, rows: bool, **changed: Any) -> Observation:
    seen = observed(drop=tuple((0, name) for name in ("gate", "up", "act")), **changed)
    names = ("router_logits", "topk_ids", "topk_weights", "expert_out.experts", "expert_out")
    for number, name in enumerate(names[: 5 if rows else 3]):
        digest = np.stack([np.arange(10), np.full(10, 600 + number)], 1).astype(np.uint64)
        digest[changed.get(f"l0_{name}", [])] += 1000
        seen.points[0, name], seen.order[0, name] = Series(KEYS, digest, "bfloat16", 8), 30 + number
    return seen


def test_rows_of_single_experts_stand_between_the_router_and_their_sum() -> None:
    a, rows = with_experts(rows=True), [1, 4]
    assert localise(a, a).missing == ()
    found = localise(a, with_experts(rows=True, l0_expert_out=rows, l0_mlp_out=rows)).cause
    assert found is not None and (label(found.node.point), found.rows) == ("layers.0.expert_out", 2)
    found = localise(a, with_experts(rows=True, l0_mlp_out=rows)).cause
    assert found is not None and (0, "expert_out") in found.node.parents
    weights = localise(a, with_experts(rows=True, l0_topk_weights=rows, l0_expert_out=rows)).cause
    assert weights is not None and label(weights.node.point) == "layers.0.topk_weights"


def test_a_side_that_fuses_its_experts_has_their_rows_absorbed_in_the_sum() -> None:
    found = localise(with_experts(rows=True), with_experts(rows=False, l0_mlp_out=[3]))
    assert found.missing == () and found.cause is not None
    assert (label(found.cause.node.point), found.cause.node.through) == ("layers.0.mlp_out", ((0, "expert_out"),))
    assert {found.status[0, name] for name in ("expert_out", "expert_out.experts")} == {"absorbed"}


@pytest.mark.parametrize("points", CLASSES.values())
def test_every_class_names_points_that_exist(points: tuple[str, ...]) -> None:
    assert set(points) <= set(ROWS)


def test_a_recurrent_layer_has_points_of_its_own_and_needs_no_keys() -> None:
    wanted = mandatory([(0, "ssm_out")], 2)
    assert {(0, "conv_out"), (0, "ssm_out"), (1, "k")} <= set(wanted)
    assert (0, "k") not in wanted


def recurrent(**changed: Any) -> Observation:
    seen = observed(
        drop=tuple((0, name) for name in ("q", "k", "v", "attn_out", "q_proj", "k_proj", "v_proj")), **changed
    )
    for number, name in enumerate(RECURRENT):
        digest = np.stack([np.arange(10), np.full(10, 500 + number)], 1).astype(np.uint64)
        digest[changed.get(f"l0_{name}", [])] += 1000
        seen.points[0, name], seen.order[0, name] = Series(KEYS, digest, "float32", 8), 100 + number
    return seen


def test_a_recurrence_is_blamed_and_not_the_projection_after_it() -> None:
    found = localise(recurrent(), recurrent(l0_ssm_out=[4], l0_o_proj=[4])).cause
    assert found is not None and label(found.node.point) == "layers.0.ssm_out"
    after = localise(recurrent(), recurrent(l0_o_proj=[4])).cause
    # The gate that a recurrence's output is multiplied with is made of the layer's input.
    assert after is not None and label(after.node.point) == "layers.0.o_proj"
    assert after.node.parents == ((0, "ssm_out"), (0, "attn_norm"))


def test_a_recurrence_is_not_blamed_when_an_earlier_row_of_its_input_differs() -> None:
    found = localise(recurrent(), recurrent(l0_conv_out=[1], l0_ssm_out=[1, 2, 3])).cause
    assert found is not None and label(found.node.point) == "layers.0.conv_out"


def test_an_own_point_that_mixes_rows_is_not_blamed_for_an_earlier_row_of_its_input() -> None:
    a, b = observed(), observed(l0_v=[0])
    for side, rows in ((a, []), (b, [0])):
        for name, differing in (("scan.in0", rows), ("scan", [0, 3] if rows else [])):
            digest = np.zeros((10, 2), np.uint64)
            digest[differing] = 7
            side.points[0, name], side.order[0, name] = Series(KEYS, digest, "float32", 4), 98 + len(name)
    found = localise(a, b).cause
    assert found is not None and label(found.node.point) == "layers.0.v"


def test_a_part_of_a_fused_tensor_on_one_side_is_n_to_one() -> None:
    a, b = observed(), observed()
    for name in ("q_proj", "k_proj", "v_proj"):
        a.points[0, name] = replace(a.points[0, name], whole=24)
    status = localise(a, b).status
    assert (status[0, "q_proj"], status[1, "q_proj"]) == ("N:1", "1:1")
    for name in ("q_proj", "k_proj", "v_proj"):
        b.points[0, name] = replace(b.points[0, name], whole=24)
    assert localise(a, b).status[0, "q_proj"] == "1:1"


def test_the_payload_of_a_quantised_point_is_made_with_its_scale() -> None:
    a, b = observed(), observed()
    for side, other in ((a, 0), (b, 9)):
        for number, name in enumerate(("quant.in0", "quant.scale", "quant.payload")):
            digest = np.full((10, 2), 0 if name == "quant.in0" else other, np.uint64)
            side.points[0, name], side.order[0, name] = Series(KEYS, digest, "float32", 4), 90 + number
    found = localise(a, b).cause
    assert found is not None and (found.state, label(found.node.point)) == ("culprit", "layers.0.quant.scale")


def test_ranks_that_hold_other_copies_are_a_finding_of_their_own() -> None:
    outcome = Outcome(hashed={"a against b": localise(observed(), observed())})
    outcome.replicas["a, 0.router"] = "rank 1 of ep holds other bits than rank 0 (1 of 8 values)"
    assert [reason.code for reason in reasons_of(outcome)] == ["replicas_differ"]
