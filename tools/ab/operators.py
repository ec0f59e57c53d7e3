"""Time by operator class on one side or two, the most expensive difference first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pydantic import JsonValue

MOST_NAMED: Final = 8


def breakdown_figures(
    operators: Mapping[str, Mapping[str, JsonValue]], seconds: Mapping[str, float]
) -> dict[str, JsonValue]:
    """Milliseconds by class; with two sides the difference, greatest first. `unattributed`: no operator ran."""
    classes = {name: _classes(found.get("classes")) for name, found in operators.items()}
    sides: dict[str, JsonValue] = {}
    for name, found in classes.items():
        total = seconds[name]
        lines: dict[str, JsonValue] = {c: _ms(s) for c, s in sorted(found.items(), key=lambda item: -item[1])}
        rest = max(0.0, total - sum(found.values()))
        sides[name] = {"turn_ms": _ms(total), "unattributed_ms": _ms(rest), "classes_ms": lines}
    figures: dict[str, JsonValue] = {"sides": sides}
    if len(classes) == 2:
        (one, first), (two, second) = classes.items()
        by_cost = sorted({*first, *second}, key=lambda c: -abs(first.get(c, 0.0) - second.get(c, 0.0)))
        figures["difference"] = {"of": one, "minus": two, "turn_ms": _ms(seconds[one] - seconds[two])}
        figures["by_class"] = [
            {
                "class": name,
                "difference_ms": _ms(first.get(name, 0.0) - second.get(name, 0.0)),
                one: _ms(first.get(name, 0.0)),
                two: _ms(second.get(name, 0.0)),
            }
            for name in by_cost
        ]
    figures["costliest"] = {name: list(_lines(found.get("operators"))) for name, found in operators.items()}
    return figures


def _lines(listed: JsonValue) -> Iterator[str]:
    for item in listed[:MOST_NAMED] if isinstance(listed, list) else ():
        if isinstance(item, dict):
            yield f"{item['name']} ({item['class']}): {_ms(item['seconds'])} ms in {item['calls']} calls"


def breakdown_summary(figures: Mapping[str, JsonValue]) -> str:
    by_class = figures.get("by_class")
    if isinstance(by_class, list) and by_class:
        top = by_class[0]
        assert isinstance(top, dict)
        of = figures["difference"]
        assert isinstance(of, dict)
        turn, most = of["turn_ms"], top["difference_ms"]
        assert isinstance(turn, float) and isinstance(most, float)
        return (
            f"{of['of']} takes {_more(turn)} a turn than {of['minus']} under the profiler; the greatest difference "
            f"is {top['class']}: {_more(most)}."
        )
    sides = figures.get("sides")
    assert isinstance(sides, dict)
    parts = []
    for name, side in sides.items():
        assert isinstance(side, dict)
        classes = side["classes_ms"]
        assert isinstance(classes, dict)
        top_class = next(iter(classes), "nothing")
        parts.append(f"{name}: most time in {top_class} ({classes.get(top_class)} of {side['turn_ms']} ms a turn)")
    return "; ".join(parts) + "."


def _more(milliseconds: float) -> str:
    return f"{abs(milliseconds):.4g} ms {'more' if milliseconds >= 0 else 'less'}"


def _classes(value: JsonValue) -> dict[str, float]:
    if not isinstance(value, dict):
        return {}
    return {name: float(seconds) for name, seconds in value.items() if isinstance(seconds, int | float)}


def _ms(seconds: JsonValue) -> float:
    return float(f"{float(seconds) * 1e3:.4g}") if isinstance(seconds, int | float) else 0.0
