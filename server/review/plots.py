"""Small SVG figures of what evidence says: an interval, and a value by step. Pure: numbers to coordinates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from bitgate.store.records import Evidence

WIDTH: Final = 640.0
HEIGHT: Final = 160.0
MARGIN: Final = 48.0


@dataclass(frozen=True)
class Interval:
    """A ratio with its interval and the floor it is held against, as x coordinates; texts beside."""

    low: float
    middle: float
    high: float
    floor: float
    one: float
    label: str


@dataclass(frozen=True)
class Line:
    """A polyline's points and the axis labels."""

    points: str
    top: str
    bottom: str
    first: str
    last: str
    title: str


def interval(evidence: Evidence, floor: float) -> Interval | None:
    low, middle, high = (_number(evidence.figures, name) for name in ("ratio_low", "ratio", "ratio_high"))
    if low is None or high is None:
        return None
    middle = middle if middle is not None else (low + high) / 2
    least, most = min(low, floor, 0.6), max(high, 1.05)

    def x(value: float) -> float:
        return round(MARGIN + (value - least) / (most - least) * (WIDTH - 2 * MARGIN), 1)

    label = f"{middle:.3f} of the baseline, from {low:.3f} to {high:.3f}; floor {floor:.2f}"
    return Interval(x(low), x(middle), x(high), x(floor), x(1.0), label)


def by_step(evidence: Evidence) -> Line | None:
    """KL by step, where evidence has it."""
    values = evidence.figures.get("kl_by_step")
    numbers = [float(v) for v in values if isinstance(v, int | float)] if isinstance(values, list) else []
    return line(numbers, "KL by step") if len(numbers) > 1 and all(map(math.isfinite, numbers)) else None


def line(values: Sequence[float], title: str) -> Line:
    most, least = max(values), min(min(values), 0.0)
    span = (most - least) or 1.0
    step = (WIDTH - 2 * MARGIN) / (len(values) - 1)
    points = " ".join(
        f"{MARGIN + n * step:.1f},{HEIGHT - 24 - (value - least) / span * (HEIGHT - 48):.1f}"
        for n, value in enumerate(values)
    )
    return Line(points, f"{most:.3g}", f"{least:.3g}", "1", str(len(values)), title)


def _number(figures: dict[str, JsonValue], name: str) -> float | None:
    value = figures.get(name)
    return (
        float(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        else None
    )
