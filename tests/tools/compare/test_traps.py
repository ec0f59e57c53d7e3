"""What passes in existing comparators and must not pass here (and two that must)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from bitgate.tools.compare import PairResult

Columns = dict[str, np.ndarray]
Compare = Callable[..., PairResult]


def changed(columns: Columns, **new: np.ndarray) -> Columns:
    return {**columns, **new}


def with_value(columns: Columns, column: str, row: int, value: object) -> Columns:
    values = columns[column].copy()
    values[row] = value
    return changed(columns, **{column: values})


def codes(result: PairResult) -> set[str]:
    return {reason.code for reason in result.reasons}


def test_equal_captures_pass(compare: Compare, columns: Columns) -> None:
    result = compare(columns, columns)
    assert (result.verdict, result.compared, result.different) == ("pass", 192, 0)


def test_one_wrong_row_in_4096_fails(compare: Compare, make_columns: Callable[..., Columns]) -> None:
    columns = make_columns(64, 64)
    row = 64 * 37
    result = compare(columns, with_value(columns, "logprob", row, columns["logprob"][row] - 1))
    assert (result.verdict, result.different) == ("fail", 1)
    assert result.first is not None and (result.first.row_a, result.first.sequence, result.first.position) == (
        row,
        37,
        10,
    )


def test_one_ulp_in_one_token_fails(compare: Compare, columns: Columns) -> None:
    value = np.nextafter(columns["logprob"][3], np.float32(-9))
    result = compare(columns, with_value(columns, "logprob", 3, value))
    assert result.verdict == "fail"
    assert result.statistics is not None and result.statistics.ulp_histogram == {"1": 1}


def test_three_zeroed_rows_fail(compare: Compare, columns: Columns) -> None:
    logprob = columns["logprob"].copy()
    logprob[[2, 40, 80]] = 0
    assert compare(columns, changed(columns, logprob=logprob)).different == 3


def test_a_two_percent_scale_fails_in_every_row(compare: Compare, columns: Columns) -> None:
    scaled = (columns["logprob"] * np.float32(1.02)).astype(np.float32)
    assert compare(columns, changed(columns, logprob=scaled)).different == 192


def test_plus_zero_against_minus_zero_fails(compare: Compare, columns: Columns) -> None:
    result = compare(with_value(columns, "logprob", 5, 0.0), with_value(columns, "logprob", 5, -0.0))
    assert (result.verdict, result.different) == ("fail", 1)
    assert result.statistics is not None
    assert (result.statistics.sign_of_zero, result.statistics.ulp_max) == (1, 0)
    assert result.statistics.ulp_histogram == {"0": 1}


@pytest.mark.parametrize("column", ["token_id", "position", "sequence"])
def test_integers_beyond_float32_are_told_apart(compare: Compare, columns: Columns, column: str) -> None:
    """2^24 and 2^24 + 1 are one number in float32."""
    a, b = columns[column].copy(), columns[column].copy()
    last = slice(-1, None) if column != "sequence" else slice(-32, None)
    a[last], b[last] = 1 << 24, (1 << 24) + 1
    assert compare(changed(columns, **{column: a}), changed(columns, **{column: b})).verdict == "invalid"


def test_nan_on_one_side_only_is_invalid(compare: Compare, columns: Columns) -> None:
    assert codes(compare(columns, with_value(columns, "logprob", 7, np.nan))) == {"not_finite"}
    assert codes(compare(with_value(columns, "logprob", 7, np.nan), columns)) == {"not_finite"}


def test_the_same_nan_on_both_sides_is_invalid_under_the_mask(compare: Compare, columns: Columns) -> None:
    broken = with_value(columns, "logprob", 7, np.nan)
    assert codes(compare(broken, broken)) == {"not_finite"}


def test_the_last_row_wrong_fails(compare: Compare, columns: Columns) -> None:
    every = changed(columns, mask=np.ones_like(columns["mask"]))
    result = compare(every, with_value(every, "logprob", -1, columns["logprob"][-1] - 1))
    assert result.first is not None and result.first.row_a == 255


def test_the_last_masked_row_wrong_fails(compare: Compare, columns: Columns) -> None:
    row = int(np.flatnonzero(columns["mask"])[-1])
    assert compare(columns, with_value(columns, "logprob", row, -50.0)).different == 1


@pytest.mark.parametrize("shift", [32, 1, 5])
def test_disjoint_or_shifted_positions_are_invalid(compare: Compare, columns: Columns, shift: int) -> None:
    result = compare(columns, changed(columns, position=columns["position"] + shift))
    assert "rows_missing" in codes(result)
    assert (result.only_a, result.only_b) == (8 * shift, 8 * shift)


def test_other_token_ids_at_the_same_positions_are_invalid(compare: Compare, columns: Columns) -> None:
    result = compare(columns, with_value(columns, "token_id", 100, columns["token_id"][100] + 1))
    assert codes(result) == {"token_ids_differ"}
    assert "sequence 3, turn 0, position 14" in result.reasons[0].detail


def test_another_mask_is_invalid(compare: Compare, columns: Columns) -> None:
    assert codes(compare(columns, with_value(columns, "mask", 0, 0))) == {"mask_differs"}


def test_one_token_of_1000_wrong_by_0_9_fails(compare: Compare, make_columns: Callable[..., Columns]) -> None:
    columns = make_columns(1, 1000)
    result = compare(columns, with_value(columns, "logprob", 499, columns["logprob"][499] - 0.9))
    assert (result.verdict, result.different) == ("fail", 1)


@pytest.mark.parametrize("rows", [(0, 1), (0, 200), (33, 97)])
def test_two_rows_swapped_fail(compare: Compare, columns: Columns, rows: tuple[int, int]) -> None:
    logprob = columns["logprob"].copy()
    logprob[list(rows)] = logprob[list(reversed(rows))]
    assert compare(columns, changed(columns, logprob=logprob)).different == 2


def test_logprobs_permuted_within_a_sequence_fail(compare: Compare, columns: Columns) -> None:
    logprob = columns["logprob"].copy()
    logprob[:24] = logprob[:24][::-1]
    assert compare(columns, changed(columns, logprob=logprob)).different == 24


def test_all_values_negated_are_invalid(compare: Compare, columns: Columns) -> None:
    assert codes(compare(columns, changed(columns, logprob=-columns["logprob"]))) == {"logprob_positive"}


@pytest.mark.parametrize(("a", "b"), [(-1e-9, -2e-9), (-2.9e-8, -1e-8), (-1e-38, -2e-38), (-1e-45, -0.0)])
def test_logprobs_that_all_exponentiate_to_one_fail(compare: Compare, columns: Columns, a: float, b: float) -> None:
    left, right = (changed(columns, logprob=np.full(256, value, np.float32)) for value in (a, b))
    result = compare(left, right)
    assert (result.verdict, result.different) == ("fail", 192)
    assert result.statistics is not None and result.statistics.saturated == 192
    assert result.statistics.fp32_probability_difference_max == 0
    assert result.statistics.logprob_difference.max > 0


def test_logprobs_whose_exponentials_underflow_fail(compare: Compare, columns: Columns) -> None:
    result = compare(with_value(columns, "logprob", 3, -110.0), with_value(columns, "logprob", 3, -120.0))
    assert (result.verdict, result.different) == ("fail", 1)
    assert result.statistics is not None and result.statistics.saturated == 1


def test_a_constant_difference_of_1e_5_fails_although_fp32_k3_is_zero(compare: Compare, columns: Columns) -> None:
    base = np.full(256, -0.3, np.float32)
    result = compare(changed(columns, logprob=base), changed(columns, logprob=base - np.float32(1e-5)))
    assert (result.verdict, result.different) == ("fail", 192)
    assert result.statistics is not None and result.statistics.k3_fp32_zero == 192
    assert result.statistics.fp32_k3_mean == 0
    assert result.statistics.k3.mean == pytest.approx(0.5 * 1e-10, rel=0.02)


@pytest.mark.parametrize("bits", [0x7FC00000, 0xFFC00001, 0x7F800001, 0xFF800000, 0x7F800000])
def test_equal_nan_payloads_and_infinities_outside_the_mask_pass(compare: Compare, columns: Columns, bits: int) -> None:
    logprob = columns["logprob"].copy()
    logprob.view(np.uint32)[columns["mask"] == 0] = bits
    assert compare(changed(columns, logprob=logprob), changed(columns, logprob=logprob)).verdict == "pass"


def test_differences_outside_the_mask_pass_and_are_counted(compare: Compare, columns: Columns) -> None:
    logprob = columns["logprob"].copy()
    logprob[columns["mask"] == 0] = np.nan
    result = compare(columns, changed(columns, logprob=logprob))
    assert (result.verdict, result.different_outside_mask) == ("pass", 64)


@pytest.mark.parametrize("value", [-np.inf, np.inf])
def test_infinities_under_the_mask_are_invalid(compare: Compare, columns: Columns, value: float) -> None:
    broken = with_value(columns, "logprob", 0, value)
    assert codes(compare(broken, broken)) == {"not_finite"}


@pytest.mark.parametrize("row", [0, 31, 32, 128, 255])
def test_a_dropped_row_is_invalid(compare: Compare, columns: Columns, row: int) -> None:
    shorter = {name: np.delete(values, row) for name, values in columns.items()}
    result = compare(columns, shorter)
    assert codes(result) == {"rows_missing"}
    assert (result.only_a, result.only_b, result.joined) == (1, 0, 255)


def test_a_dropped_sequence_is_invalid(compare: Compare, columns: Columns) -> None:
    assert compare(columns, {name: values[32:] for name, values in columns.items()}).only_a == 32


def test_other_sequence_numbers_are_invalid(compare: Compare, columns: Columns) -> None:
    result = compare(columns, changed(columns, sequence=columns["sequence"] + 100))
    assert codes(result) == {"rows_missing"}
    assert result.joined == 0
