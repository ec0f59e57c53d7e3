"""Figures with their limits: each is printed beside what it may be, and a missed one ends the script with 1."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field


@dataclass
class Figures:
    """`end()` after the last figure; it leaves the process when one was missed."""

    missed: list[str] = field(default_factory=list)

    def at_most(self, name: str, value: float, limit: float, unit: str = "", *, detail: str = "") -> None:
        self._say(name, value, f"at most {limit:g}", unit, detail, value <= limit)

    def at_least(self, name: str, value: float, limit: float, unit: str = "", *, detail: str = "") -> None:
        self._say(name, value, f"at least {limit:g}", unit, detail, value >= limit)

    def holds(self, name: str, seen: str, wanted: str, good: bool) -> None:
        self._line(f"{name}: {seen} ({wanted})", good)

    def end(self) -> None:
        if self.missed:
            sys.exit("missed: " + "; ".join(self.missed))

    def _say(self, name: str, value: float, limit: str, unit: str, detail: str, good: bool) -> None:
        more = f"; {detail}" if detail else ""
        self._line(f"{name}: {value:.3g}{' ' if unit[:1].isalpha() else ''}{unit} ({limit}{more})", good)

    def _line(self, text: str, good: bool) -> None:
        sys.stdout.write(f"{'' if good else 'MISSED '}{text}\n")
        sys.stdout.flush()
        if not good:
            self.missed.append(text)
