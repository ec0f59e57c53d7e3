"""What a comparison found, as frozen types, and as the figures that evidence stores."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from bitgate.store.records import Reason, Verdict
from bitgate.tools.reasons import verdict_of

WORST_IN_FIGURES: Final = 2
CLUSTERS_IN_FIGURES: Final = 3


@dataclass(frozen=True)
class Row:
    """One differing row. `row_a` and `row_b` are its indices in the two captures."""

    row_a: int
    row_b: int
    sequence: int
    turn: int
    position: int
    token_id: int
    a: float
    b: float
    a_bits: str
    b_bits: str
    ulp: int


@dataclass(frozen=True)
class Summary:
    """float64, over all rows compared."""

    max: float
    mean: float
    std: float


@dataclass(frozen=True)
class Statistics:
    """Over the rows compared; p is exp(logprob). k3 = expm1(d) - d with d = logprob_b - logprob_a (Schulman's k3)."""

    probability_difference: Summary
    logprob_difference: Summary
    k3: Summary
    ulp_max: int
    ulp_histogram: dict[str, int]
    sign_of_zero: int
    """Rows that differ only as -0.0 against +0.0."""
    saturated: int
    """Rows whose bits differ while exp() of both is one fp32 value: the usual probability difference shows 0."""
    k3_fp32_zero: int
    """Rows whose bits differ while k3 computed in fp32 is exactly 0."""
    fp32_probability_difference_max: float
    fp32_k3_mean: float


@dataclass(frozen=True)
class Cluster:
    """How many of the compared rows with this value differ. `compared` is None where it was not counted."""

    value: str
    different: int
    compared: int | None


@dataclass(frozen=True)
class Histogram:
    """Rows in equal bins from 0 on: `different` is exact, `compared` counted in one part of `sampled` and scaled."""

    width: int
    different: tuple[int, ...]
    compared: tuple[int, ...]
    sampled: int = 1


@dataclass(frozen=True)
class Table:
    """The first differing rows, column by column, and how many more there were."""

    columns: Mapping[str, NDArray[Any]]
    cut: int


@dataclass(frozen=True)
class PairResult:
    """Two captures, `a` and `b`, compared under the response mask."""

    a: str
    b: str
    reasons: tuple[Reason, ...]
    rows_a: int = 0
    rows_b: int = 0
    joined: int = 0
    compared: int = 0
    different: int = 0
    different_outside_mask: int = 0
    only_a: int = 0
    only_b: int = 0
    by_key: bool = False
    """The two sides hold their rows in another order and were joined by key."""
    problems: Mapping[str, int] = field(default_factory=dict)
    sequences_different: int = 0
    first: Row | None = None
    worst: tuple[Row, ...] = ()
    statistics: Statistics | None = None
    clusters: Mapping[str, tuple[Cluster, ...]] = field(default_factory=dict)
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    table: Table | None = None

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self.reasons)

    def figures(self) -> dict[str, JsonValue]:
        """Small and finite: what the evidence and the tool's answer show of this pair."""
        shown = {
            item.name: getattr(self, item.name)
            for item in fields(self)
            if item.name not in ("reasons", "worst", "clusters", "histograms", "table", "problems")
        }
        shown["problems"] = dict(self.problems)
        shown["worst"] = self.worst[:WORST_IN_FIGURES]
        shown["clusters"] = {name: found[:CLUSTERS_IN_FIGURES] for name, found in self.clusters.items()}
        shown["verdict"] = self.verdict
        made = plain(shown)
        assert isinstance(made, dict)
        return made


@dataclass(frozen=True)
class SelfTest:
    """Faults planted in copies of real windows, and which of them the comparison found."""

    planted: tuple[str, ...]
    seen: tuple[str, ...]
    not_plantable: tuple[str, ...] = ()
    windows: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    seed: int = 0

    @property
    def missed(self) -> tuple[str, ...]:
        return tuple(name for name in self.planted if name not in self.seen)

    @property
    def passed(self) -> bool:
        return bool(self.planted) and not self.missed

    def record(self) -> dict[str, JsonValue]:
        """What evidence keeps in `self_test`."""
        return {
            "passed": self.passed,
            "planted": len(self.planted),
            "seen": len(self.seen),
            "missed": plain(self.missed),
            "not_plantable": plain(self.not_plantable),
            "faults": plain(sorted({name.split("@")[0] for name in self.planted})),
            "windows": plain(self.windows),
            "seed": self.seed,
        }


@dataclass(frozen=True)
class Comparison:
    """Several pairs with one verdict: what run_compare turns into a Finding."""

    pairs: Mapping[str, PairResult]
    reasons: tuple[Reason, ...]
    self_test: SelfTest | None
    summary: str
    coverage: Mapping[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self.reasons)

    def figures(self) -> dict[str, JsonValue]:
        made = plain(
            {
                "rows_compared": sum(pair.compared for pair in self.pairs.values()),
                "rows_different": sum(pair.different for pair in self.pairs.values()),
                "pairs": {name: pair.figures() for name, pair in self.pairs.items()},
                "coverage": dict(self.coverage),
            }
        )
        assert isinstance(made, dict)
        return made


def plain(value: Any) -> JsonValue:
    """JSON values; a float that is not finite becomes `{"value": null, "not_finite": "inf"}`."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"value": None, "not_finite": str(value)}
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} does not belong into figures")
