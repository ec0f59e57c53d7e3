"""Rows in another order, split over shards, or written twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitgate.tools.captures import Capture, open_capture
from bitgate.tools.captures.rows import ArrayRows
from bitgate.tools.captures.validate import Limits
from bitgate.tools.compare import PairResult, compare_pair, groups, join, stream
from bitgate.tools.compare.pair import Side, compare_sides
from bitgate.tools.engines.worker.capture import CaptureWriter

Columns = dict[str, np.ndarray]
WEIGHTS = {"digest": "ab" * 32}


def in_order(columns: Columns, sequences: list[int], length: int = 32) -> Columns:
    rows = np.concatenate([np.arange(sequence * length, (sequence + 1) * length) for sequence in sequences])
    return {name: values[rows] for name, values in columns.items()}


def sides(a: Columns, b: Columns) -> PairResult:
    return compare_sides(Side("a", ArrayRows(a)), Side("b", ArrayRows(b)))


def codes(result: PairResult) -> set[str]:
    return {reason.code for reason in result.reasons}


def shards(folder: Path, parts: list[Columns], **arguments: Any) -> Capture:
    for rank, part in enumerate(parts):
        with CaptureWriter(
            folder, engine="t", role="r", weights=WEIGHTS, rank=rank, world_size=len(parts), **arguments
        ) as writer:
            writer.add_columns(part)
    return open_capture(folder, name=folder.name)


@pytest.mark.parametrize("order", [[7, 6, 5, 4, 3, 2, 1, 0], [0, 2, 1, 3, 4, 5, 6, 7], [3, 0, 1, 2, 4, 5, 6, 7]])
def test_sequences_in_another_order_are_joined_and_equal(columns: Columns, order: list[int]) -> None:
    result = sides(columns, in_order(columns, order))
    assert (result.verdict, result.by_key, result.compared) == ("pass", True, 192)


def test_a_difference_is_found_by_key_and_named_by_the_row_of_each_side(columns: Columns) -> None:
    other = in_order(columns, [1, 0, 2, 3, 4, 5, 6, 7])
    other["logprob"] = other["logprob"].copy()
    other["logprob"][3] -= 1
    result = sides(columns, other)
    assert result.different == 1
    assert result.first is not None and (result.first.row_a, result.first.row_b, result.first.sequence) == (35, 3, 1)


def test_the_first_different_row_is_the_first_of_side_a(columns: Columns) -> None:
    backwards = in_order(columns, [7, 6, 5, 4, 3, 2, 1, 0])
    other = {**columns, "logprob": columns["logprob"] - 1}
    result = sides(backwards, other)
    assert result.first is not None and (result.first.row_a, result.first.sequence) == (0, 7)


def test_both_sides_permuted_alike_are_equal_in_order(columns: Columns) -> None:
    mixed = in_order(columns, [4, 2, 7, 0, 1, 6, 5, 3])
    result = sides(mixed, mixed)
    assert (result.verdict, result.by_key) == ("pass", False)


def test_values_that_belong_to_another_sequence_fail_after_the_join(columns: Columns) -> None:
    other = in_order(columns, [1, 0, 2, 3, 4, 5, 6, 7])
    other["logprob"] = columns["logprob"]
    other["token_id"] = other["token_id"].copy()
    assert sides(columns, other).different == 48


def test_a_repeated_row_is_a_duplicate_key(columns: Columns) -> None:
    rows = np.insert(np.arange(256), 10, 9)
    twice = {name: values[rows] for name, values in columns.items()}
    assert codes(sides(twice, twice)) == {"duplicate_key"}
    assert "duplicate_key" in codes(sides(columns, twice))


def test_a_repeated_key_with_another_value_is_a_duplicate_key(columns: Columns) -> None:
    rows = np.insert(np.arange(256), 10, 9)
    twice = {name: values[rows].copy() for name, values in columns.items()}
    twice["logprob"][10] -= 1
    assert "duplicate_key" in codes(sides(twice, twice))


@pytest.mark.parametrize("other_value", [False, True])
def test_a_sequence_written_twice_is_a_duplicate_key(columns: Columns, other_value: bool) -> None:
    rows = np.concatenate([np.arange(256), np.arange(32)])
    twice = {name: values[rows].copy() for name, values in columns.items()}
    twice["logprob"][-1] -= other_value
    for result in (sides(twice, twice), sides(columns, twice)):
        assert codes(result) >= {"duplicate_key", "sequence_repeated"}


def test_a_sequence_that_ends_and_begins_again_is_invalid(columns: Columns) -> None:
    rows = np.concatenate([np.arange(16), np.arange(32, 256), np.arange(16, 32)])
    split = {name: values[rows] for name, values in columns.items()}
    assert codes(sides(split, split)) == {"sequence_repeated"}
    assert codes(sides(columns, split)) == {"sequence_repeated"}


def test_positions_that_do_not_grow_are_invalid(columns: Columns) -> None:
    rows = np.arange(256)
    rows[[4, 5]] = [5, 4]
    mixed = {name: values[rows] for name, values in columns.items()}
    assert codes(sides(mixed, mixed)) == {"positions_not_increasing"}
    assert "positions_not_increasing" in codes(sides(columns, mixed))


def test_order_is_checked_across_chunk_edges(monkeypatch: pytest.MonkeyPatch, columns: Columns) -> None:
    monkeypatch.setattr(stream, "CHUNK_ROWS", 5)
    rows = np.arange(256)
    rows[[4, 5]] = [5, 4]
    mixed = {name: values[rows] for name, values in columns.items()}
    assert codes(sides(mixed, mixed)) == {"positions_not_increasing"}
    assert sides(columns, columns).compared == 192


def test_turns_order_rows_before_positions(columns: Columns) -> None:
    turn = np.where(columns["position"] < 26, 0, 1).astype(np.int32)
    again = {**columns, "turn": turn, "position": np.where(turn == 1, columns["position"] - 16, columns["position"])}
    assert sides(again, again).verdict == "pass"
    assert codes(sides({name: values for name, values in again.items() if name != "turn"}, again)) >= {"rows_missing"}


def test_a_missing_turn_column_means_turn_zero(columns: Columns) -> None:
    assert sides(columns, {**columns, "turn": np.zeros(256, np.int32)}).verdict == "pass"


def test_shards_are_one_capture(columns: Columns, tmp_path: Path, make: Callable[..., Capture]) -> None:
    parts = [in_order(columns, [0, 1, 2]), in_order(columns, [3, 4]), in_order(columns, [5, 6, 7])]
    merged = shards(tmp_path / "merged", parts)
    assert merged.coverage() == {"shards": 3, "rows": 256, "masked": 192, "sequences": 8}
    assert compare_pair(make(columns, "whole"), merged).verdict == "pass"


def test_shards_that_hold_sequences_in_turn_are_joined(columns: Columns, tmp_path: Path, make: Any) -> None:
    parts = [in_order(columns, [0, 2, 4, 6]), in_order(columns, [1, 3, 5, 7])]
    result = compare_pair(make(columns, "whole"), shards(tmp_path / "merged", parts))
    assert (result.verdict, result.by_key, result.compared) == ("pass", True, 192)


def test_positions_split_over_context_parallel_ranks_are_joined(columns: Columns, tmp_path: Path, make: Any) -> None:
    zigzag = np.isin((columns["position"] - 10) // 8, [0, 3])
    parts = [{name: values[chosen] for name, values in columns.items()} for chosen in (zigzag, ~zigzag)]
    result = compare_pair(make(columns, "whole"), shards(tmp_path / "merged", parts))
    assert (result.verdict, result.compared) == ("pass", 192)


def test_a_row_written_by_two_ranks_is_a_duplicate_key(columns: Columns, tmp_path: Path, make: Any) -> None:
    parts = [in_order(columns, [0, 1, 2, 3]), in_order(columns, [3, 4, 5, 6, 7])]
    merged = shards(tmp_path / "merged", parts)
    assert "duplicate_key" in codes(compare_pair(make(columns, "whole"), merged))
    assert "duplicate_key" in codes(compare_pair(merged, merged))


def test_many_groups_are_joined_in_several_passes(monkeypatch: pytest.MonkeyPatch, make_columns: Any) -> None:
    monkeypatch.setattr(join, "MAX_GROUPS", 10)
    monkeypatch.setattr(join, "BATCH_GROUPS", 3)
    monkeypatch.setattr(join, "SMALL_ROWS", 0)
    monkeypatch.setattr(groups, "SCAN_ROWS", 7)
    columns = make_columns(60, 4)
    other = in_order(columns, np.random.default_rng(3).permutation(60).tolist(), 4)
    other["logprob"] = other["logprob"].copy()
    other["logprob"][other["mask"] == 1] -= 1
    result = sides(columns, other)
    assert (result.joined, result.compared, result.different) == (240, 180, 180)


def test_a_huge_sequence_is_joined_in_windows(monkeypatch: pytest.MonkeyPatch, make_columns: Any) -> None:
    monkeypatch.setattr(join, "BATCH_ROWS", 10)
    monkeypatch.setattr(join, "WINDOW_ROWS", 20)
    columns = make_columns(2, 500)
    shorter = {name: np.delete(values, [0, 250, 499, 999]) for name, values in columns.items()}
    result = sides(columns, shorter)
    assert (result.joined, result.only_a, result.only_b) == (996, 4, 0)


def test_windows_cut_at_turns_too(monkeypatch: pytest.MonkeyPatch, make_columns: Any) -> None:
    monkeypatch.setattr(join, "BATCH_ROWS", 10)
    monkeypatch.setattr(join, "WINDOW_ROWS", 20)
    columns = make_columns(1, 300)
    columns["turn"] = (np.arange(300) // 50).astype(np.int32)
    columns["position"] = np.arange(300) % 50
    shorter = {name: np.delete(values, [0, 77]) for name, values in columns.items()}
    assert (sides(columns, shorter).joined, sides(columns, shorter).only_a) == (298, 2)


@pytest.mark.parametrize(
    ("column", "value"), [("position", -1), ("sequence", -1), ("token_id", -1), ("token_id", 1000)]
)
def test_numbers_outside_their_range_are_invalid(columns: Columns, column: str, value: int) -> None:
    """-1 is how padding often looks, and a token beyond the vocabulary is none."""
    broken = {**columns, column: columns[column].copy()}
    broken[column][:32] = value if column == "sequence" else broken[column][:32]
    broken[column][0] = value
    side = Side("a", ArrayRows(broken), Limits(vocab_size=1000))
    assert codes(compare_sides(side, side)) == {"value_out_of_range"}


@pytest.mark.parametrize("column", ["sequence", "position", "token_id"])
def test_numbers_up_to_the_largest_int64_are_numbers(columns: Columns, column: str) -> None:
    huge = {**columns, column: columns[column] + (2**63 - 2000)}
    lower = {**huge, "logprob": columns["logprob"] - np.float32(0.5)}
    assert sides(huge, huge).verdict == "pass"
    assert (sides(huge, lower).verdict, sides(huge, lower).different) == ("fail", 192)


def test_a_negative_turn_is_invalid(columns: Columns) -> None:
    early = {**columns, "turn": np.where(columns["position"] < 26, -2, 1).astype(np.int32)}
    assert codes(sides(early, early)) == {"value_out_of_range"}


def test_a_turn_that_begins_below_zero_is_invalid(columns: Columns) -> None:
    again = {**columns, "turn": (columns["position"] >= 26).astype(np.int32), "position": columns["position"].copy()}
    again["position"][16] = -3
    assert codes(sides(again, again)) == {"value_out_of_range"}


@pytest.mark.parametrize(("masked", "sequences"), [(191, 8), (192, 7)])
def test_counts_other_than_those_stated_are_invalid(columns: Columns, masked: int, sequences: int) -> None:
    stated = Side("a", ArrayRows(columns), masked=masked, sequences=sequences)
    sound = Side("b", ArrayRows(columns), masked=192, sequences=8)
    permuted = Side("c", ArrayRows(in_order(columns, [7, 6, 5, 4, 3, 2, 1, 0])))
    for result in (compare_sides(stated, sound), compare_sides(sound, stated), compare_sides(stated, permuted)):
        assert codes(result) == {"counts_disagree"}


@pytest.mark.parametrize("value", [2, 255])
def test_a_mask_that_is_no_mask_is_invalid(columns: Columns, value: int) -> None:
    broken = {**columns, "mask": columns["mask"] * np.uint8(value)}
    assert codes(sides(broken, broken)) == {"mask_values"}
