"""What paired timings show: a ratio with an interval that keeps its coverage at small n, and what could have been seen.

The unit is the block: ABBA or BAAB, the orientation drawn for each block. A block's log-ratio is the mean of its two
pairs, in which a linear drift cancels; what does not cancel changes sign with the orientation, so that blocks are
symmetric about the true log-ratio by design, and not because noise was assumed to be normal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import exp, inf, log, sqrt
from typing import Any, Final, Literal

import numpy as np

from bitgate.tools.ab.student import t_quantile

Floats = np.ndarray[Any, np.dtype[np.float64]]
Method = Literal["sign_flip", "t_on_blocks", "none"]

LEVEL: Final = 0.95
POWER: Final = 0.80
FEWEST_PAIRS: Final = 6
SIGN_FLIP_FROM: Final = 6
"""Blocks from which 2^n sign patterns are enough for a 95 % interval: with five the widest one reaches 93.75 %."""
ENUMERATED: Final = 14
"""Up to so many blocks every subset is used; beyond, this many bits of seeded random ones."""
TRIALS: Final = 20_000


@dataclass(frozen=True)
class Interval:
    """Log-ratio and ratio; `coverage` is what the interval really covers, at least the level asked for."""

    estimate: float
    low: float
    high: float
    method: Method
    coverage: float
    blocks: int
    pairs: int

    @property
    def ratio(self) -> float:
        return exp(self.estimate)

    @property
    def ratio_low(self) -> float:
        return exp(self.low)

    @property
    def ratio_high(self) -> float:
        return exp(self.high)

    def holds(self, ratio: float) -> bool:
        return self.low <= log(ratio) <= self.high


def pair_log_ratios(schedule: Sequence[str], rates: Sequence[float]) -> Floats:
    """log(rate of "a" / rate of "b") of each two turns that follow each other; shape [turns / 2].

    Raises: ValueError when two turns of a pair are of the same arm, or a rate is not a positive number.
    """
    if len(schedule) != len(rates) or len(schedule) % 2:
        raise ValueError(f"turns: got {len(schedule)} arms and {len(rates)} rates; allowed: an even, equal number")
    values = np.asarray(rates, np.float64)
    if not np.all(np.isfinite(values)) or np.any(values <= 0):
        raise ValueError("rates: every one must be a finite number above 0")
    pairs = [(schedule[i], schedule[i + 1]) for i in range(0, len(schedule), 2)]
    if any({*pair} != {"a", "b"} for pair in pairs):
        raise ValueError("turns: each pair must hold one turn of either arm")
    logs = np.log(values).reshape(-1, 2)
    signs = np.array([1.0 if first == "a" else -1.0 for first, _ in pairs])
    return np.asarray(signs * (logs[:, 0] - logs[:, 1]), np.float64)


def block_log_ratios(pairs: Floats) -> Floats:
    """Mean of each two pairs; shape [pairs / 2]."""
    return np.asarray(pairs.reshape(-1, 2).mean(axis=1), np.float64)


def interval(blocks: Floats, level: float = LEVEL) -> Interval:
    """The interval of the mean log-ratio: inverted sign-flip from six blocks on, else t on the blocks."""
    n = len(blocks)
    if n >= SIGN_FLIP_FROM:
        return sign_flip_interval(blocks, level)
    return t_interval(blocks, level)


def t_interval(blocks: Floats, level: float = LEVEL) -> Interval:
    """Student's t on the blocks; without an interval below two blocks."""
    n = len(blocks)
    mean = float(blocks.mean()) if n else 0.0
    if n < 2:
        return Interval(mean, -inf, inf, "none", 1.0, n, 2 * n)
    half = t_quantile(0.5 + level / 2, n - 1) * float(blocks.std(ddof=1)) / sqrt(n)
    return Interval(mean, mean - half, mean + half, "t_on_blocks", level, n, 2 * n)


def sign_flip_interval(blocks: Floats, level: float = LEVEL) -> Interval:
    """All shifts that the exact sign-flip test of the mean does not reject.

    The means of the 2^n - 1 non-empty subsets cut the line into 2^n parts that hold the true centre equally often,
    whatever the symmetric distribution (Hartigan 1969, JASA 64: typical values), so the interval is between two of
    them.
    """
    ends, coverage = _ends(blocks[None, :], level)
    return Interval(
        float(blocks.mean()), float(ends[0, 0]), float(ends[0, 1]), "sign_flip", coverage, len(blocks), 2 * len(blocks)
    )


def sign_flip_p(blocks: Floats) -> float:
    """Two-sided p of "both arms are equal" by the exact sign-flip test of the mean; at least 2 / 2^n."""
    signs = 2.0 * _subsets(len(blocks), empty=True) - 1
    flipped = np.abs(signs @ blocks)
    return float(np.mean(flipped >= abs(blocks.sum()) * (1 - 1e-12)))


def _ends(rows: Floats, level: float) -> tuple[Floats, float]:
    """Interval ends of every row of blocks; shape [rows, 2], and the coverage they have."""
    subsets = _subsets(rows.shape[1])
    means = np.sort(rows @ (subsets / subsets.sum(axis=1, keepdims=True)).T, axis=1)
    parts = means.shape[1] + 1
    skipped = int((1 - level) / 2 * parts + 1e-9)
    if skipped < 1:
        return np.tile(np.array([-inf, inf]), (len(rows), 1)), 1.0
    return np.stack([means[:, skipped - 1], means[:, -skipped]], axis=1), 1 - 2 * skipped / parts


@lru_cache(maxsize=8)
def _subsets(n: int, *, empty: bool = False) -> Floats:
    """Membership of every subset, or of 2^14 - 1 seeded random ones; shape [subsets, n]."""
    if n <= ENUMERATED:
        numbers = np.arange(0 if empty else 1, 2**n)
        return ((numbers[:, None] >> np.arange(n)) & 1).astype(np.float64)
    drawn = np.random.default_rng(n).integers(0, 2, (2**ENUMERATED, n)).astype(np.float64)
    drawn = drawn[drawn.any(axis=1)][: 2**ENUMERATED - 1]
    return np.vstack([np.ones((1, n)), drawn]) if empty else drawn


@lru_cache(maxsize=64)
def detectable_in_sd(blocks: int, level: float = LEVEL, power: float = POWER) -> float:
    """The shift, in standard deviations of a block, whose interval excludes zero with this power.

    Of the very interval that is used: the power at shift d is P(lower end of pure noise > -d), so d is a quantile of
    the lower end. Simulated with normal noise, seeded.
    """
    if blocks < 2:
        return inf
    trials = TRIALS if blocks <= 10 else TRIALS // 10
    noise = np.random.default_rng(blocks).standard_normal((trials, blocks))
    if blocks >= SIGN_FLIP_FROM:
        low = _ends(noise, level)[0][:, 0]
    else:
        factor = t_quantile(0.5 + level / 2, blocks - 1) / sqrt(blocks)
        low = noise.mean(axis=1) - factor * noise.std(axis=1, ddof=1)
    return float(-np.quantile(low, 1 - power))


def minimum_detectable(spread: float, blocks: int) -> float:
    """The smallest |ratio - 1| that a run of so many blocks sees four times out of five; `spread`: sd of a block."""
    detectable = detectable_in_sd(blocks) * spread
    return inf if detectable > 700 else exp(detectable) - 1


def spread_of(blocks: Floats) -> float:
    """Standard deviation of one block's log-ratio."""
    return float(blocks.std(ddof=1)) if len(blocks) > 1 else inf


def pooled_spread(*runs: Floats) -> float:
    """The greater of the spreads: a null run that happened to be quiet must not make every difference detectable."""
    return max((spread_of(blocks) for blocks in runs if len(blocks) > 1), default=inf)


def draw_schedule(blocks: int, seed: int) -> tuple[str, ...]:
    """Turns of `blocks` blocks, each ABBA or BAAB by a fair, seeded draw."""
    starts = np.random.default_rng([seed, blocks]).integers(0, 2, blocks)
    return tuple(arm for start in starts for arm in ("abba" if start == 0 else "baab"))


def draw_roles(blocks: int, seed: int) -> tuple[bool, ...]:
    """In which blocks the two processes of one side stand for each other: in half of them, drawn and seeded.

    Two processes of one side differ (where their memory lies, their hash seeds) for as long as they live. Were each of
    them always the same arm, a null run would find that difference, again and again; with changing roles it is noise,
    makes the interval wider, and the null run asks of the instrument alone whether it favours an arm.
    """
    drawn = np.random.default_rng([seed, blocks, 1]).permutation(blocks)
    return tuple(bool(number % 2) for number in drawn)


def balanced(schedule: Sequence[str]) -> bool:
    """Whether every block of four gives both arms the same places: one of them first in one pair, last in the other."""
    blocks = [tuple(schedule[i : i + 4]) for i in range(0, len(schedule), 4)]
    return all(block in {tuple("abba"), tuple("baab")} for block in blocks)


def drift_per_turn(rates: Sequence[float]) -> float:
    """Slope of log rate over turns, by the median of successive differences: how the machine moved, not the sides."""
    logs = np.log(np.asarray(rates, np.float64))
    return float(np.median([later - earlier for earlier, later in pairwise(logs)])) if len(logs) > 1 else 0.0
