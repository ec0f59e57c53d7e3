"""From the turns of a run to what may be said: null run, ratio with its interval, what was detectable, the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal

import numpy as np
from pydantic import JsonValue

from bitgate.store.records import Reason
from bitgate.tools.ab.samples import Turn
from bitgate.tools.ab.statistics import (
    Floats,
    Interval,
    block_log_ratios,
    interval,
    minimum_detectable,
    pair_log_ratios,
    pooled_spread,
    sign_flip_p,
)
from bitgate.tools.ab.vetoes import Check
from bitgate.tools.reasons import reason

Claim = Literal["faster", "slower", "no significant change"]


@dataclass(frozen=True)
class Comparison:
    """One run of blocks: log-ratios of its blocks and pairs, and their interval. Ratios are a / b."""

    pairs: Floats
    blocks: Floats
    interval: Interval

    def figures(self) -> dict[str, JsonValue]:
        found = self.interval
        return {
            "ratio": rounded(found.ratio),
            "ratio_low": rounded(found.ratio_low),
            "ratio_high": rounded(found.ratio_high),
            "method": found.method,
            "coverage": rounded(found.coverage),
            "blocks": found.blocks,
            "pairs": found.pairs,
            "p_sign_flip": rounded(sign_flip_p(self.blocks)) if found.blocks else None,
        }


def compared(turns: Sequence[Turn]) -> Comparison | None:
    """None where a turn has no rate, or the turns are no blocks: the vetoes say which and why."""
    whole = len(turns) - len(turns) % 4
    kept = turns[:whole]
    if not kept or any(not isfinite(turn.rate) or turn.rate <= 0 for turn in kept):
        return None
    try:
        pairs = pair_log_ratios([turn.arm for turn in kept], [turn.rate for turn in kept])
    except ValueError:
        return None
    blocks = block_log_ratios(pairs)
    return Comparison(pairs, blocks, interval(blocks))


@dataclass(frozen=True)
class Outcome:
    """`detectable`: the smallest |ratio - 1| that this run had a fair chance to see."""

    null: Comparison | None
    main: Comparison | None
    detectable: float
    claim: Claim


def outcome(null: Comparison | None, main: Comparison | None) -> Outcome:
    spread = pooled_spread(*(item.blocks for item in (null, main) if item is not None))
    blocks = main.interval.blocks if main else null.interval.blocks if null else 0
    detectable = minimum_detectable(spread, blocks) if isfinite(spread) else float("inf")
    return Outcome(null, main, detectable, _claim(main, detectable))


def _claim(main: Comparison | None, detectable: float) -> Claim:
    """Faster, or slower, only when the interval excludes 1 and the effect is one that the run could see."""
    if main is None:
        return "no significant change"
    found = main.interval
    effect = max(found.ratio, 1 / found.ratio) - 1
    if effect <= detectable or found.holds(1.0):
        return "no significant change"
    return "faster" if found.estimate > 0 else "slower"


def judged(check: Check, result: Outcome, floor: float) -> list[Reason]:
    """The reasons that the figures themselves give, besides the vetoes. None of them is a pass."""
    reasons = []
    null = result.null
    if null is not None and not null.interval.holds(1.0):
        shown = f"{null.interval.ratio_low:.4f} to {null.interval.ratio_high:.4f}"
        reasons.append(reason("null_run_biased", f"one side against itself: {shown}"))
    if check == "aa" or result.main is None:
        return reasons
    found = result.main.interval
    shown = f"{found.ratio:.4f}, interval {found.ratio_low:.4f} to {found.ratio_high:.4f}"
    if check == "ab":
        if result.claim == "slower":
            reasons.append(reason("slower", shown))
        elif result.claim != "faster":
            least = f"{result.detectable:.2%}" if isfinite(result.detectable) else "nothing"
            reasons.append(reason("no_significant_change", f"{shown}; detectable was {least}"))
    elif found.ratio_high < floor:
        reasons.append(reason("below_floor", f"{shown}; the floor is {floor:.4f}"))
    elif found.ratio_low < floor:
        reasons.append(reason("floor_not_shown", f"{shown}; the floor is {floor:.4f}"))
    return reasons


def rounded(value: float) -> float | None:
    return float(f"{value:.6g}") if isfinite(value) else None


def block_rates(turns: Sequence[Turn]) -> list[dict[str, JsonValue]]:
    """Tokens a second of both arms, block by block."""
    lines: list[dict[str, JsonValue]] = []
    for start in range(0, len(turns) - 3, 4):
        block = turns[start : start + 4]
        rates = {arm: [t.rate for t in block if t.arm == arm] for arm in ("a", "b")}
        line: dict[str, JsonValue] = {"order": "".join(t.arm for t in block)}
        lines.append(line | {arm: rounded(float(np.mean(values))) if values else None for arm, values in rates.items()})
    return lines
