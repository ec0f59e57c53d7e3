"""Layouts in which sides bring their tensors, each brought into one form without touching a bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def made(script: Callable[..., str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(script("layouts.py"))
    return found


@pytest.mark.parametrize("case", ["tp", "tp in any order", "cp zigzag", "both", "replicas", "ordered"])
def test_shards_become_the_tensor_that_they_were_cut_from(made: dict[str, Any], case: str) -> None:
    assert made["shards"][case] is True


@pytest.mark.parametrize("case", ["other replica", "sign of zero"])
def test_copies_with_other_bits_are_a_finding_even_for_the_sign_of_zero(made: dict[str, Any], case: str) -> None:
    assert made["shards"][case].startswith("ReplicasDiffer: rank 1 of ")
    assert "(1 of " in made["shards"][case]


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("missing", "tp has ranks [1]"),
        ("partial", "say tp:partial=ordered if the ranks are added in their order"),
        ("unknown cut", "allowed is [axis] or [axis:zigzag]"),
        ("unreadable", "got 's-1'"),
        ("dimensions", "names 2 dimensions"),
        ("twice", "an axis cuts one dimension only"),
    ],
)
def test_shards_that_are_no_tensor_are_refused_with_what_is_allowed(
    made: dict[str, Any], case: str, words: str
) -> None:
    assert words in made["shards"][case]


@pytest.mark.parametrize("case", ["floats", "bytes", "packed", "packed and transposed", "transposed and padded"])
def test_scales_of_every_layout_are_the_same_floats(made: dict[str, Any], case: str) -> None:
    assert made["scales"][case] is True


@pytest.mark.parametrize("case", ["another layout", "another shape", "packed floats"])
def test_scales_of_no_known_layout_are_refused(made: dict[str, Any], case: str) -> None:
    assert "allowed" in made["scales"][case]


def test_masked_and_contiguous_buffers_hold_the_same_rows_and_counts(made: dict[str, Any]) -> None:
    found = made["experts"]
    assert found["counts"] == [[2, 2, 3, 1, 0]] * 2
    assert all(found[case] is True for case in ("sorted", "the same rows", "by token"))
    assert (found["of token 0"], found["dropped"]) == ([0, 2], [0, -1])


@pytest.mark.parametrize("case", ["a slot twice", "count over capacity"])
def test_buffers_that_cannot_be_are_refused(made: dict[str, Any], case: str) -> None:
    assert made["experts"][case].startswith("ValueError")


def test_what_a_user_records_in_a_layout_becomes_rows_and_what_is_wrong_is_kept(made: dict[str, Any]) -> None:
    found = made["recorded"]
    assert found["points"] == {
        "h": [[4, 4], "torch.float32"],
        "quant.scale": [[4, 2], "torch.float32"],
        "quant.payload": [[4, 8], "torch.float8_e4m3fn"],
        "expert_out.experts": [[4, 1], "torch.int64"],
        "expert_out": [[4, 2], "torch.float32"],
    }
    assert list(found["replicas"]) == ["0.r"]
    assert "tp:partial" in found["problems"]["0.p"]


def test_usual_names_of_a_users_modules_become_points_and_inputs_given_by_name_are_looked_at(
    script: Callable[..., str],
) -> None:
    made = json.loads(script("named.py"))
    own = {"self_attn.turn", "self_attn.turn.in0", "self_attn.turn.in1"}
    assert {"q_norm", "k_norm"} | own <= set(made["points"])
    assert "record(0, 'own', ...): got a list" in made["no tensor"]
