"""Rows of single experts, convolutions and scans on real engines: what differs is named with its class."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.engine

FIRST = {
    "one expert's weight": ("layers.1.expert_out", "weight_bytes"),
    "another token's row": ("layers.0.expert_out", "layout_mask"),
    "transformers and megatron": ("layers.0.attn_norm", "precision"),
    "int8, scales": ("layers.0.qkv_proj.scale", "precision"),
    "delta rule, vllm and transformers": ("layers.0.conv_out", "unknown"),
    "delta rule, convolution": ("layers.0.conv_out", "weight_bytes"),
    "delta rule, scan": ("layers.0.ssm_out", "weight_bytes"),
    "delta rule, alone and together": ("layers.0.conv_out", "batch_variance"),
    "mamba2, convolution": ("layers.0.conv_out", "weight_bytes"),
    "mamba2, scan": ("layers.0.ssm_out", "weight_bytes"),
    "mamba2, alone and together": ("layers.0.conv_out", "batch_variance"),
}
"""Pair -> the operator that differs first, and its class."""
EQUAL = (
    "a loop and its equal", "an expert's rows backwards", "and the experts", "delta rule, clean", "delta rule, vllm",
    "mamba2, clean", "int8, clean",
)  # fmt: skip
ROWS = 9 + 4 + 5 + 4
"""Of the two sequences that every pair computes."""


@pytest.fixture(scope="module")
def pairs(script: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    printed = script("points_lab.py", str(tmp_path_factory.mktemp("points") / "work"))
    found = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return {entry["pair"]: entry for entry in found}


@pytest.mark.parametrize("pair", FIRST)
def test_the_operator_that_is_another_one_is_named_with_its_class(pairs: dict[str, Any], pair: str) -> None:
    found = pairs[pair]
    assert (found["point"], found["class"]) == FIRST[pair], found
    assert found["repro"]["reproduces"], found["repro"]


@pytest.mark.parametrize("pair", EQUAL)
def test_sides_that_compute_the_same_are_clean_with_no_mandatory_point_missing(
    pairs: dict[str, Any], pair: str
) -> None:
    found = pairs[pair]
    assert (found["point"], found["class"], found["missing"]) == (None, "equal", []), found


def test_with_norms_and_attention_made_equal_megatron_differs_where_an_expert_is_weighted(
    pairs: dict[str, Any],
) -> None:
    assert pairs["norms and attention made equal"]["point"] == "layers.0.expert_out"


@pytest.mark.parametrize("pair", ["a loop and its equal", "a loop and grouped products", "transformers and megatron"])
def test_rows_of_experts_meet_whatever_buffer_they_lie_in(pairs: dict[str, Any], pair: str) -> None:
    points = pairs[pair]["points"]
    for layer in (0, 1):
        assert points[f"layers.{layer}.expert_out"][:2] == ["1:1", ROWS]
    assert points["layers.0.expert_out.experts"] == ["1:1", ROWS, 0]


def test_a_kernel_of_all_experts_at_once_has_their_rows_inside(pairs: dict[str, Any]) -> None:
    points = pairs["vllm and transformers"]["points"]
    assert points["layers.0.expert_out"] == points["layers.0.expert_out.experts"] == ["absorbed", 0, 0]
    assert points["layers.0.mlp_out"][0] == "1:1" and pairs["vllm and transformers"]["missing"] == []


def test_quantised_activations_are_compared_apart_from_their_scales(pairs: dict[str, Any]) -> None:
    for name in ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"):
        for part in ("scale", "payload"):
            assert pairs["int8, clean"]["points"][f"layers.1.{name}.{part}"] == ["1:1", ROWS, 0]


def test_one_repro_is_proved_in_fresh_processes(pairs: dict[str, Any]) -> None:
    assert [1, 1, 1] in [found.get("repro", {}).get("exit_codes") for found in pairs.values()]
