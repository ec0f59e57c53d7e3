"""Legs of one step, views of one reference, and evidence that each was computed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitgate.tools.captures import Capture, open_capture
from bitgate.tools.compare import Comparison, SelfTest, compare_legs, compare_views, legs
from bitgate.tools.engines.worker.capture import CaptureWriter

Columns = dict[str, np.ndarray]
Make = Callable[..., Capture]
WEIGHTS = {"digest": "ab" * 32}


def codes(result: Comparison) -> list[str]:
    return [reason.code for reason in result.reasons]


@pytest.fixture
def three(make: Make, columns: Columns) -> dict[str, Capture]:
    return {name: make(columns, name) for name in ("rollout", "recompute", "first_train_forward")}


def test_three_equal_legs_pass(three: dict[str, Capture]) -> None:
    result = compare_legs(three)
    assert (result.verdict, codes(result)) == ("pass", [])
    assert list(result.pairs) == ["rollout/recompute", "rollout/first_train_forward", "recompute/first_train_forward"]
    assert result.summary == "All 576 rows compared in 3 pairs have equal fp32 bits."


def test_a_train_forward_that_differs_from_the_recompute_fails(make: Make, columns: Columns) -> None:
    """Train mode against eval mode: dropout, recomputation, packing."""
    other = {**columns, "logprob": columns["logprob"] - np.float32(0.01)}
    result = compare_legs(
        {name: make(columns, name) for name in ("rollout", "recompute")}
        | {"first_train_forward": make(other, "first_train_forward")}
    )
    assert codes(result) == ["logprobs_differ", "logprobs_differ", "cause_unresolved"]
    assert [pair.different for pair in result.pairs.values()] == [0, 192, 192]


def test_a_missing_leg_is_inconclusive(three: dict[str, Capture]) -> None:
    del three["first_train_forward"]
    result = compare_legs(three)
    assert (result.verdict, codes(result)) == ("inconclusive", ["leg_missing"])


def test_a_missing_leg_does_not_hide_a_difference(make: Make, columns: Columns) -> None:
    other = {**columns, "logprob": columns["logprob"] * 2}
    result = compare_legs({"rollout": make(columns, "rollout"), "recompute": make(other, "recompute")})
    assert (result.verdict, codes(result)) == ("fail", ["leg_missing", "logprobs_differ", "cause_unresolved"])


def test_no_leg_at_all_is_inconclusive() -> None:
    assert compare_legs({}, required=()).verdict == "inconclusive"


def test_a_column_copied_from_the_rollout_is_no_recompute(tmp_path: Path, columns: Columns) -> None:
    """The old logprobs of the rollout handed in again: a KL of zero that nothing computed."""
    shared = columns["logprob"].copy()
    found = {}
    for name in ("rollout", "recompute"):
        with CaptureWriter(tmp_path / name, engine="t", role=name, weights=WEIGHTS) as writer:
            writer.add_columns({**columns, "logprob": shared[:]})
            writer.computed(kind="forward", passes=1)
        found[name] = open_capture(tmp_path / name)
    result = compare_legs(found, required=found)
    assert (result.verdict, codes(result)) == ("invalid", ["no_evidence_of_recompute"])
    assert "same buffer" in result.reasons[0].detail


def test_an_address_that_is_used_again_is_another_buffer(tmp_path: Path, columns: Columns) -> None:
    found, addresses = {}, set()
    for number in range(12):
        name = f"leg{number}"
        fresh = np.array(columns["logprob"])
        addresses.add(fresh.ctypes.data)
        with CaptureWriter(tmp_path / name, engine="t", role=name, weights=WEIGHTS) as writer:
            writer.add_columns({**columns, "logprob": fresh})
            writer.computed(kind="forward", passes=1)
        del fresh
        found[name] = open_capture(tmp_path / name)
    assert len(addresses) < 12
    assert compare_legs(found, required=found).verdict == "pass"


@pytest.mark.parametrize("computed", [{"passes": 0}])
def test_a_leg_without_a_forward_pass_is_invalid(make: Make, columns: Columns, computed: dict[str, Any]) -> None:
    found = {"rollout": make(columns, "rollout"), "recompute": make(columns, "recompute", computed=computed)}
    assert codes(compare_legs(found, required=found)) == ["no_evidence_of_recompute"]


def test_a_leg_without_a_computation_record_is_invalid(tmp_path: Path, make: Make, columns: Columns) -> None:
    with CaptureWriter(tmp_path / "r", engine="t", role="recompute", weights=WEIGHTS) as writer:
        writer.add_columns(columns)
    found = {"rollout": make(columns, "rollout"), "recompute": open_capture(tmp_path / "r")}
    assert codes(compare_legs(found, required=found)) == ["no_evidence_of_recompute"]


@pytest.mark.parametrize("how", ["same", "copy", "hardlink"])
def test_one_capture_cannot_be_two_legs(tmp_path: Path, make: Make, columns: Columns, how: str) -> None:
    first = make(columns, "rollout")
    if how == "same":
        other = open_capture(tmp_path / "rollout", name="recompute")
    else:
        copy = os.link if how == "hardlink" else shutil.copy
        shutil.copytree(tmp_path / "rollout", tmp_path / "recompute", copy_function=copy)
        other = open_capture(tmp_path / "recompute")
    found = codes(compare_legs({"rollout": first, "recompute": other}, required=()))
    assert found == ["no_evidence_of_recompute", "role_differs"]


@pytest.mark.parametrize("handed_in_as", ["recompute", "first_train_forward"])
def test_a_capture_that_says_it_is_another_leg_is_invalid(
    make: Make, columns: Columns, tmp_path: Path, handed_in_as: str
) -> None:
    trained = {"mode": "train", "grad": True, "backward": True}
    make(columns, "another", role="rollout", computed=trained)
    found = {"rollout": make(columns, "rollout"), handed_in_as: open_capture(tmp_path / "another")}
    assert codes(compare_legs(found, required=())) == ["role_differs"]


def test_a_role_of_ones_own_is_no_leg(make: Make, columns: Columns) -> None:
    legs_ = {name: make(columns, f"my {name}", role="mine") for name in ("rollout", "recompute")}
    assert compare_legs(legs_, required=()).verdict == "pass"


@pytest.mark.parametrize("idle", [{"passes": 0}, {"mode": "unknown"}, {"grad": False}])
def test_a_rank_without_rows_of_the_train_leg_need_not_have_trained(
    three: dict[str, Capture], columns: Columns, tmp_path: Path, idle: dict[str, Any]
) -> None:
    for rank, rows in enumerate((columns, {name: values[:0] for name, values in columns.items()})):
        with CaptureWriter(
            tmp_path / "ranks", engine="t", role="first_train_forward", weights=WEIGHTS, rank=rank, world_size=2
        ) as writer:
            writer.add_columns(rows)
            trained = {"kind": "forward", "passes": 1, "mode": "train", "grad": True, "backward": True}
            writer.computed(**{**trained, **(idle if rank else {})})
    three["first_train_forward"] = open_capture(tmp_path / "ranks")
    assert compare_legs(three).verdict == "pass"


@pytest.mark.parametrize("computed", [{"mode": "eval"}, {"grad": False}, {"backward": False}])
def test_the_train_leg_must_be_the_forward_that_makes_the_loss(
    three: dict[str, Capture], make: Make, columns: Columns, tmp_path: Path, computed: dict[str, Any]
) -> None:
    shutil.rmtree(tmp_path / "first_train_forward")
    three["first_train_forward"] = make(columns, "first_train_forward", computed=computed)
    assert codes(compare_legs(three)) == ["not_the_train_forward"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"weights": {"digest": "cd" * 32}}, "weights_differ"),
        ({"weights": {"digest": "ab" * 32, "version": 3}}, "weight_version_differs"),
        ({"model": {"architecture_digest": "cd" * 32}}, "weights_differ"),
        ({"model": {"vocab_size": 2000}}, "vocabulary_differs"),
        ({"tokenizer_digest": "cd" * 32}, "tokenizer_differs"),
        ({"logprobs_mode": "processed_logprobs"}, "logprobs_mode"),
        ({"temperature": 0.7}, "temperature_differs"),
        ({"sampling": {"top_p": 0.9}}, "sampling_contract"),
        ({"sampling": {"temperature": 0.6}}, "sampling_contract"),
        ({"sampling": {"top_k": 50}}, "sampling_contract"),
        ({"sampling": {"min_p": 0.05}}, "sampling_contract"),
        ({"sampling": {"repetition_penalty": 1.1}}, "sampling_contract"),
        ({"sampling": {"presence_penalty": 0.5}}, "sampling_contract"),
        ({"sampling": {"logit_bias": {"5": 1.0}}}, "sampling_contract"),
        ({"sampling": {"bad_words": ["x"]}}, "sampling_contract"),
        ({"sampling": {"min_tokens": 4}}, "sampling_contract"),
        ({"sampling": {"top_p": True}}, "sampling_contract"),
        ({"sampling": {"a_new_transform": 1}}, "sampling_contract"),
        ({"sampling": {"top_p": "1"}}, "sampling_contract"),
        ({"sampling": {"use_beam_search": True}}, "sampling_contract"),
        ({"sampling": {"use_beam_search": 0}}, "sampling_contract"),
        ({"sampling": {"num_beams": 4}}, "sampling_contract"),
        ({"sampling": {"no_repeat_ngram_size": 3}}, "sampling_contract"),
        ({"sampling": {"extra_args": {"processor": "x"}}}, "sampling_contract"),
    ],
)
def test_identity_comes_before_numbers(make: Make, columns: Columns, arguments: dict[str, Any], code: str) -> None:
    stated = {"model": {"architecture_digest": "ab" * 32, "vocab_size": 1000}, "tokenizer_digest": "ab" * 32}
    other = {**columns, "logprob": columns["logprob"] - 1}
    found = {
        "rollout": make(other, "rollout", **{**stated, **arguments}),
        "recompute": make(columns, "recompute", **stated),
    }
    result = compare_legs(found, required=found)
    assert (result.verdict, set(codes(result))) == ("invalid", {code})
    assert result.pairs["rollout/recompute"].statistics is None


@pytest.mark.parametrize(
    "sampling",
    [
        None,
        {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "seed": 5, "max_tokens": 64},
        {"temperature": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "logit_bias": None, "n": 8},
        {"do_sample": True, "num_beams": 1, "use_beam_search": False, "extra_args": None, "no_repeat_ngram_size": 0},
    ],
)
def test_sampling_that_leaves_the_distribution_alone_is_comparable(make: Make, columns: Columns, sampling: Any) -> None:
    found = {"rollout": make(columns, "rollout", sampling=sampling), "recompute": make(columns, "recompute")}
    assert compare_legs(found, required=found).verdict == "pass"


def test_what_one_side_does_not_state_is_no_difference(make: Make, columns: Columns) -> None:
    found = {"rollout": make(columns, "rollout", model={"vocab_size": 1000}), "recompute": make(columns, "recompute")}
    assert compare_legs(found, required=found).verdict == "pass"


def test_rows_of_another_weight_version_are_invalid(make: Make, columns: Columns) -> None:
    versions = np.zeros(256, np.int64)
    versions[200:] = 1
    stale = make({**columns, "weight_version": versions}, "rollout")
    result = compare_legs({"rollout": stale, "recompute": make(columns, "recompute")}, required=())
    assert codes(result) == ["weight_version_differs"]


def test_a_view_that_may_hold_a_part_says_how_much_it_holds(make: Make, columns: Columns) -> None:
    reference = make(columns, "reference")
    part = {name: values[64:128] for name, values in columns.items()}
    views = {"batch 1": make(columns, "one"), "batch 2": make(part, "two")}
    result = compare_views(reference, views, partial={"batch 2"})
    assert result.verdict == "pass"
    assert dict(result.coverage) == {
        "batch 1": {"compared": 192, "of": 192},
        "batch 2": {"compared": 48, "of": 192},
    }


def test_views_that_leave_rows_out_are_inconclusive(make: Make, columns: Columns) -> None:
    part = {name: values[:128] for name, values in columns.items()}
    result = compare_views(make(columns, "reference"), {"part": make(part, "part")})
    assert (result.verdict, codes(result)) == ("inconclusive", ["partial_coverage"])
    assert compare_views(make(columns, "again"), {"part": make(part, "part2")}, partial={"part"}).verdict == "pass"


def test_a_view_with_rows_that_the_reference_lacks_is_invalid(make: Make, columns: Columns) -> None:
    part = {name: values[:128] for name, values in columns.items()}
    result = compare_views(make(part, "reference"), {"more": make(columns, "more")})
    assert "rows_missing" in codes(result)


@pytest.mark.parametrize("difference", [0.0, 1e-6])
def test_without_a_computation_record_views_can_fail_but_not_pass(
    make: Make, columns: Columns, tmp_path: Path, difference: float
) -> None:
    with CaptureWriter(tmp_path / "dump", engine="t", role="dump", weights=WEIGHTS) as writer:
        writer.add_columns({**columns, "logprob": columns["logprob"] - np.float32(difference)})
    shutil.copytree(tmp_path / "dump", tmp_path / "copy")
    of = make(columns, "reference") if difference else open_capture(tmp_path / "copy", name="copy")
    result = compare_views(of, {"dump": open_capture(tmp_path / "dump")})
    expected = {"logprobs_differ", "cause_unresolved"} if difference else {"no_evidence_of_recompute"}
    assert set(codes(result)) == expected


def test_a_view_that_differs_fails(make: Make, columns: Columns) -> None:
    part = {name: values[:64].copy() for name, values in columns.items()}
    part["logprob"][0] -= 1
    result = compare_views(make(columns, "reference"), {"part": make(part, "part")}, partial={"part"})
    assert (result.verdict, codes(result)) == ("fail", ["logprobs_differ", "cause_unresolved"])


def test_a_dump_pair_that_differs_names_no_cause(make: Make, columns: Columns) -> None:
    """Two files are all there is: up to 7 nats apart, and nothing in them says why."""
    other = columns["logprob"].copy()
    other[100:110] -= 7
    result = compare_legs(
        {"eager": make(columns, "eager"), "graph": make({**columns, "logprob": other}, "graph")}, required=()
    )
    assert (result.verdict, codes(result)) == ("fail", ["logprobs_differ", "cause_unresolved"])


def test_a_comparison_that_misses_a_planted_fault_is_inconclusive(
    three: dict[str, Capture], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(legs, "self_test", lambda a, b: SelfTest(("one_ulp@first",), ()))
    result = compare_legs(three)
    assert (result.verdict, codes(result)) == ("inconclusive", ["self_test_failed"])


def test_figures_stay_small_and_are_strict_json(make: Make, make_columns: Callable[..., Columns]) -> None:
    columns = make_columns(200, 50)
    rng = np.random.default_rng(2)
    legs = {}
    for name in ("rollout", "recompute", "first_train_forward"):
        noisy = columns["logprob"] * np.float32(1 + rng.random() / 10)
        facets = {
            "phase": rng.integers(0, 2, 10_000),
            "batch": rng.integers(1, 64, 10_000),
            "chunk": np.arange(10_000) // 7,
        }
        legs[name] = make({**columns, **facets, "logprob": noisy}, name)
    result = compare_legs(legs)
    assert len(json.dumps(result.figures(), allow_nan=False)) < 9_000
    assert result.self_test is not None
    json.dumps(result.self_test.record(), allow_nan=False)


def test_statistics_that_are_not_finite_are_null_with_a_flag(make: Make, columns: Columns) -> None:
    huge = columns["logprob"].copy()
    huge[0] = -1e30
    found = {"a": make({**columns, "logprob": huge}, "a"), "b": make(columns, "b")}
    pair = compare_legs(found, required=()).pairs["a/b"].figures()
    assert isinstance(pair["statistics"], dict) and isinstance(pair["statistics"]["k3"], dict)
    assert pair["statistics"]["k3"]["max"] == {"value": None, "not_finite": "inf"}
