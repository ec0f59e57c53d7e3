"""The statistics by simulation: 2000 seeded runs a case."""

from __future__ import annotations

from math import exp, inf, log

import numpy as np
import pytest

from bitgate.tools.ab.conduct import planned
from bitgate.tools.ab.statistics import (
    POWER,
    balanced,
    block_log_ratios,
    detectable_in_sd,
    draw_roles,
    draw_schedule,
    interval,
    minimum_detectable,
    pair_log_ratios,
    sign_flip_interval,
    sign_flip_p,
    spread_of,
    t_interval,
)
from bitgate.tools.ab.student import t_cdf, t_quantile

RUNS = 2000
NOISE = 0.03
# Of 2000 runs a share of p lies within p +- this, 999 times out of 1000 and more.
SLACK = 3.3 * (0.05 * 0.95 / RUNS) ** 0.5


def surroundings(kind: str, turns: int, rng: np.random.Generator) -> np.ndarray:
    """What happens to the log rate of each turn, whichever side has it."""
    noise = rng.normal(0, NOISE, turns)
    place = np.arange(turns)
    if kind == "drift":
        return noise - 0.02 * place
    if kind == "warm_up":
        return noise - 0.5 * np.exp(-place / 3)
    if kind == "outliers":
        return noise - np.where(rng.random(turns) < 0.08, rng.exponential(0.5, turns), 0)
    if kind == "slow_waves":
        return noise + 0.1 * np.sin(2 * np.pi * (place / turns + rng.random()))
    if kind == "heavy_tails":
        return NOISE * rng.standard_t(2, turns)
    return noise


def simulated(kind: str, blocks: int, ratio: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng([seed, blocks])
    schedule = draw_schedule(blocks, seed)
    rates = np.exp(
        surroundings(kind, 4 * blocks, rng) + np.array([log(ratio) if arm == "a" else 0 for arm in schedule])
    )
    return block_log_ratios(pair_log_ratios(schedule, rates))


def share(kind: str, blocks: int, ratio: float, question: float) -> float:
    """How often the interval of a run holds `question`."""
    return float(np.mean([interval(simulated(kind, blocks, ratio, seed)).holds(question) for seed in range(RUNS)]))


KINDS = ["quiet", "drift", "warm_up", "outliers", "slow_waves", "heavy_tails"]


@pytest.mark.parametrize("blocks", [6, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_the_interval_covers_the_truth_as_often_as_it_says(kind: str, blocks: int) -> None:
    claimed = sign_flip_interval(simulated(kind, blocks, 0.9, 0)).coverage
    assert claimed >= 0.95
    assert share(kind, blocks, 0.9, 0.9) >= claimed - SLACK


@pytest.mark.parametrize("kind", KINDS)
def test_t_on_few_blocks_covers_the_truth(kind: str) -> None:
    assert share(kind, 4, 0.9, 0.9) >= 0.95 - SLACK


@pytest.mark.parametrize("kind", KINDS)
def test_equal_sides_are_called_different_no_more_often_than_nominal(kind: str) -> None:
    assert 1 - share(kind, 6, 1.0, 1.0) <= 0.05 + SLACK


def null_run(blocks: int, apart: float, seed: int, *, one_side: bool) -> np.ndarray:
    """One side in two processes, of which the first is faster by `apart` as long as it lives."""
    calls = planned(blocks, 0, 1, seed, one_side=one_side)[2:]
    noise = np.random.default_rng([seed, blocks, 2]).normal(0, NOISE, len(calls))
    rates = np.exp(noise + np.array([apart if call.engine == "a" else 0 for call in calls]))
    return block_log_ratios(pair_log_ratios([call.place for call in calls], rates))


@pytest.mark.parametrize("apart", [0.0, 0.03, 0.3])
@pytest.mark.parametrize("blocks", [3, 6, 7])
def test_two_processes_of_one_side_that_differ_do_not_fail_its_null_run_more_often_than_nominal(
    blocks: int, apart: float
) -> None:
    failed = [not interval(null_run(blocks, apart, seed, one_side=True)).holds(1.0) for seed in range(RUNS)]
    assert np.mean(failed) <= 0.05 + SLACK
    if apart == 0.3:
        kept = [not interval(null_run(blocks, apart, seed, one_side=False)).holds(1.0) for seed in range(300)]
        assert np.mean(kept) > 0.9, "were each process always the same arm, it would"


def test_what_two_processes_of_one_side_differ_in_makes_less_detectable() -> None:
    spreads = [np.median([spread_of(null_run(6, d, seed, one_side=True)) for seed in range(300)]) for d in (0.0, 0.1)]
    assert spreads[1] > 0.1 > 3 * spreads[0]


@pytest.mark.parametrize("blocks", range(2, 13))
def test_roles_change_in_half_of_the_blocks_and_are_drawn_anew_for_each_seed(blocks: int) -> None:
    drawn = [draw_roles(blocks, seed) for seed in range(40)]
    assert {sum(roles) for roles in drawn} == {blocks // 2}
    assert drawn == [draw_roles(blocks, seed) for seed in range(40)] and len(set(drawn)) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_side_exactly_at_the_floor_passes_no_more_often_than_one_tail(kind: str) -> None:
    passed = np.mean([interval(simulated(kind, 6, 0.7, seed)).ratio_low >= 0.7 for seed in range(RUNS)])
    assert passed <= 0.025 + SLACK


@pytest.mark.parametrize("blocks", [3, 5, 6, 8, 12])
def test_an_effect_of_the_stated_size_is_found_with_the_stated_power(blocks: int) -> None:
    rng = np.random.default_rng([7, blocks])
    shift = detectable_in_sd(blocks)
    found = np.mean([interval(rng.normal(shift, 1, blocks)).low > 0 for _ in range(RUNS)])
    assert found == pytest.approx(POWER, abs=3.3 * (POWER * (1 - POWER) / RUNS) ** 0.5 + 0.01)


def test_a_percentile_bootstrap_at_six_pairs_misses_the_truth_too_often_and_this_does_not() -> None:
    rng = np.random.default_rng(3)
    missed = {"bootstrap": 0, "sign_flip": 0}
    picks = rng.integers(0, 6, (400, 6))
    for _ in range(RUNS):
        sample = rng.normal(0, 1, 6)
        low, high = np.quantile(sample[picks].mean(axis=1), [0.025, 0.975])
        missed["bootstrap"] += not low <= 0 <= high
        missed["sign_flip"] += not sign_flip_interval(sample).holds(1.0)
    assert missed["bootstrap"] / RUNS > 0.10
    assert missed["sign_flip"] / RUNS <= 0.05 + SLACK


def test_a_linear_drift_leaves_no_trace_in_a_block() -> None:
    schedule = draw_schedule(4, 1)
    rates = np.exp(-0.05 * np.arange(16) + np.array([log(0.9) if arm == "a" else 0 for arm in schedule]))
    assert block_log_ratios(pair_log_ratios(schedule, rates)) == pytest.approx([log(0.9)] * 4)


def test_the_exact_ends_at_six_blocks_are_the_extremes() -> None:
    sample = np.array([0.1, -0.2, 0.05, 0.3, 0.0, 0.15])
    found = sign_flip_interval(sample)
    assert (found.low, found.high) == pytest.approx((-0.2, 0.3))
    assert found.coverage == pytest.approx(1 - 2 / 64)


def test_the_interval_holds_exactly_the_shifts_that_the_test_does_not_reject() -> None:
    sample = np.random.default_rng(5).normal(0.1, 1, 8)
    found = sign_flip_interval(sample)
    inside, outside = (found.low + 1e-9, found.high - 1e-9), (found.low - 1e-9, found.high + 1e-9)
    limit = 1 - found.coverage
    assert all(sign_flip_p(sample - shift) > limit for shift in inside)
    assert all(sign_flip_p(sample - shift) <= limit for shift in outside)


def test_five_blocks_are_too_few_for_a_sign_flip_and_get_t() -> None:
    assert interval(np.arange(5.0)).method == "t_on_blocks"
    assert interval(np.arange(6.0)).method == "sign_flip"


@pytest.mark.parametrize("blocks", [0, 1])
def test_without_two_blocks_nothing_is_excluded(blocks: int) -> None:
    found = t_interval(np.zeros(blocks))
    assert (found.low, found.high, found.method) == (-inf, inf, "none")
    assert minimum_detectable(0.01, blocks) == inf


def test_many_blocks_are_sampled_and_still_cover() -> None:
    rng = np.random.default_rng(11)
    held = [sign_flip_interval(rng.standard_t(3, 20)).holds(1.0) for _ in range(200)]
    assert np.mean(held) >= 0.95 - 3.3 * (0.05 * 0.95 / 200) ** 0.5


def test_schedules_are_balanced_random_and_repeatable() -> None:
    drawn = {draw_schedule(6, seed) for seed in range(200)}
    assert len(drawn) > 30
    assert all(balanced(schedule) for schedule in drawn)
    assert draw_schedule(6, 3) == draw_schedule(6, 3)
    assert not balanced("aabb") and not balanced("aaaabbbb") and not balanced("abab") and not balanced("ab")


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [("ab", [1.0]), ("aa", [1.0, 1.0]), ("ab", [1.0, 0.0]), ("ab", [1.0, float("nan")]), ("ab", [1.0, float("inf")])],
)
def test_pairs_that_are_none_are_refused(schedule: str, rates: list[float]) -> None:
    with pytest.raises(ValueError, match="turns|rates"):
        pair_log_ratios(schedule, rates)


@pytest.mark.parametrize(
    ("probability", "df", "value"),
    [(0.975, 1, 12.7062), (0.975, 2, 4.30265), (0.975, 5, 2.57058), (0.95, 10, 1.81246), (0.995, 30, 2.75000)],
)
def test_quantiles_of_t_are_those_of_the_tables(probability: float, df: int, value: float) -> None:
    assert t_quantile(probability, df) == pytest.approx(value, rel=1e-5)
    assert t_cdf(value, df) == pytest.approx(probability, abs=1e-6)


def test_the_detectable_effect_grows_with_noise_and_shrinks_with_blocks() -> None:
    assert minimum_detectable(0.01, 6) < minimum_detectable(0.02, 6)
    assert minimum_detectable(0.01, 12) < minimum_detectable(0.01, 6)
    assert minimum_detectable(0.01, 6) == pytest.approx(exp(detectable_in_sd(6) * 0.01) - 1)
