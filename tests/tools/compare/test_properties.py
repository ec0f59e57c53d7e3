"""Laws of comparing, tried on invented rows."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bitgate.tools.captures.rows import ArrayRows
from bitgate.tools.compare import PairResult
from bitgate.tools.compare.bits import ULP_BUCKETS, bucket_label, ordered, ulp_bucket, ulp_distance
from bitgate.tools.compare.moments import Moments
from bitgate.tools.compare.pair import Side, compare_sides

Columns = dict[str, np.ndarray]
LENGTHS = st.lists(st.integers(1, 6), min_size=1, max_size=8)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def sides(a: Columns, b: Columns) -> PairResult:
    return compare_sides(Side("a", ArrayRows(a)), Side("b", ArrayRows(b)))


def rows_of(lengths: list[int], seed: int) -> Columns:
    rng = np.random.default_rng(seed)
    count = sum(lengths)
    mask = rng.integers(0, 2, count).astype(np.uint8)
    mask[rng.integers(count)] = 1
    return {
        "sequence": np.repeat(rng.permutation(1000)[: len(lengths)], lengths),
        "position": np.concatenate([np.cumsum(rng.integers(1, 4, length)) for length in lengths]),
        "token_id": rng.integers(0, 50_000, count),
        "mask": mask,
        "logprob": -rng.exponential(1.0, count).astype(np.float32),
    }


@given(LENGTHS, st.integers(0, 2**32 - 1), st.data())
def test_any_flipped_bit_in_any_masked_row_is_found(lengths: list[int], seed: int, data: st.DataObject) -> None:
    columns = rows_of(lengths, seed)
    row = int(data.draw(st.sampled_from(np.flatnonzero(columns["mask"]).tolist())))
    bit = data.draw(st.integers(0, 31))
    changed = columns["logprob"].copy()
    changed.view(np.uint32)[row] ^= np.uint32(1 << bit)
    result = sides(columns, {**columns, "logprob": changed})
    assert result.verdict in ("fail", "invalid")
    if result.verdict == "fail":
        assert result.different == 1 and result.first is not None and result.first.row_a == row


@given(LENGTHS, st.integers(0, 2**32 - 1), st.data())
def test_any_flipped_bit_of_a_token_or_the_mask_is_invalid(lengths: list[int], seed: int, data: st.DataObject) -> None:
    columns = rows_of(lengths, seed)
    name = data.draw(st.sampled_from(["token_id", "mask"]))
    row = data.draw(st.integers(0, len(columns["mask"]) - 1))
    changed = columns[name].copy()
    changed[row] ^= 1 << data.draw(st.integers(0, 62 if name == "token_id" else 7))
    assert sides(columns, {**columns, name: changed}).verdict == "invalid"


@given(LENGTHS, st.integers(0, 2**32 - 1), st.randoms(use_true_random=False))
def test_any_order_of_whole_sequences_is_equal(lengths: list[int], seed: int, random: object) -> None:
    columns = rows_of(lengths, seed)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    order = list(range(len(lengths)))
    random.shuffle(order)  # type: ignore[attr-defined]
    rows = np.concatenate([np.arange(starts[index], starts[index + 1]) for index in order])
    result = sides(columns, {name: values[rows] for name, values in columns.items()})
    assert result.verdict == "pass" and result.compared == int(columns["mask"].sum())


@given(LENGTHS, st.integers(0, 2**32 - 1), st.data())
def test_any_row_left_out_is_invalid(lengths: list[int], seed: int, data: st.DataObject) -> None:
    columns = rows_of(lengths, seed)
    if len(columns["mask"]) < 2:
        return
    row = data.draw(st.integers(0, len(columns["mask"]) - 1))
    shorter = {name: np.delete(values, row) for name, values in columns.items()}
    for result in (sides(columns, shorter), sides(shorter, columns)):
        assert result.verdict == "invalid" and "rows_missing" in result.problems


@given(LENGTHS, st.integers(0, 2**32 - 1))
def test_the_two_directions_agree(lengths: list[int], seed: int) -> None:
    columns = rows_of(lengths, seed)
    rng = np.random.default_rng(seed)
    steps = rng.integers(0, 3, len(columns["mask"])).astype(np.uint32)
    other = {**columns, "logprob": (columns["logprob"].view(np.uint32) + steps).view(np.float32)}
    there, back = sides(columns, other), sides(other, columns)
    assert (there.verdict, there.different) == (back.verdict, back.different)
    assert there.different == int(((steps > 0) & (columns["mask"] == 1)).sum())


@given(FLOATS, FLOATS)
def test_ulp_distance_counts_the_values_between(a: float, b: float) -> None:
    left, right = np.array([a], np.float32), np.array([b], np.float32)
    distance = int(ulp_distance(left, right)[0])
    assert distance == int(ulp_distance(right, left)[0])
    assert (distance == 0) == (left[0] == right[0])
    if np.isfinite(up := np.nextafter(left, np.float32(np.inf)))[0]:
        assert int(ordered(up)[0] - ordered(left)[0]) == 1


@given(st.integers(0, 2**32))
def test_every_ulp_distance_lies_in_the_bucket_that_its_label_says(distance: int) -> None:
    bucket = int(ulp_bucket(np.array([distance]))[0])
    assert 0 <= bucket < ULP_BUCKETS
    low, _, high = bucket_label(bucket).partition("-")
    assert int(low) <= distance <= int(high or low)


@settings(max_examples=50)
@given(hnp.arrays(np.float64, st.integers(1, 40), elements=st.floats(0, 1e6)), st.integers(0, 40), st.integers(0, 30))
def test_moments_of_parts_are_those_of_the_whole(values: np.ndarray, cut: int, zeros: int) -> None:
    moments = Moments()
    moments.add(values[:cut])
    moments.add_zeros(zeros)
    moments.add(values[cut:])
    whole = np.concatenate([values, np.zeros(zeros)])
    assert moments.count == len(whole)
    assert math.isclose(moments.mean, whole.mean(), rel_tol=1e-9, abs_tol=1e-9)
    assert math.isclose(moments.std, whole.std(), rel_tol=1e-6, abs_tol=1e-6)
