"""Histograms over numbers whose range is not known before: bins double their width when a value lies beyond them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BINS = 256


class Bins:
    """Counts of non-negative integers in `BINS` bins of width 2**shift, starting at 0."""

    def __init__(self) -> None:
        self.shift = 0
        self.counts = np.zeros(BINS, np.int64)

    def add(self, values: NDArray[np.int64]) -> None:
        if len(values):
            self.reach(int(values.max()))
            self.counts += np.bincount(values >> self.shift if self.shift else values, minlength=BINS)

    def reach(self, value: int) -> None:
        """Widen the bins until `value` fits."""
        while value >> self.shift >= BINS:
            folded = self.counts[0::2] + self.counts[1::2]
            self.counts = np.concatenate([folded, np.zeros(BINS // 2, np.int64)])
            self.shift += 1
