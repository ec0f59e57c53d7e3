"""Maximum, mean and standard deviation in one pass, in float64, over parts of any size."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass
class Moments:
    """Chan's update of count, mean and squared deviations (Chan, Golub, LeVeque 1983)."""

    count: int = 0
    mean: float = 0.0
    deviations: float = 0.0
    maximum: float = 0.0

    def add(self, values: NDArray[np.float64]) -> None:
        """Add values that are not negative."""
        if len(values):
            mean = float(values.mean())
            self._merge(len(values), mean, float(np.square(values - mean).sum()))
            self.maximum = max(self.maximum, float(values.max()))

    def add_zeros(self, count: int) -> None:
        if count:
            self._merge(count, 0.0, 0.0)

    @property
    def std(self) -> float:
        """Population standard deviation."""
        return math.sqrt(self.deviations / self.count) if self.count else 0.0

    def _merge(self, count: int, mean: float, deviations: float) -> None:
        total, step = self.count + count, mean - self.mean
        self.deviations += deviations + step * step * self.count * count / total
        self.mean += step * count / total
        self.count = total
