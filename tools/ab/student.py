"""Student's t, without scipy: its distribution function by the incomplete beta function, its quantile by bisection."""

from __future__ import annotations

from functools import lru_cache
from math import exp, lgamma, log


def t_cdf(t: float, df: int) -> float:
    """P(T <= t) for `df` degrees of freedom (Abramowitz and Stegun 26.7.1 with 26.5.8)."""
    tail = 0.5 * incomplete_beta(df / 2, 0.5, df / (df + t * t))
    return 1 - tail if t > 0 else tail


@lru_cache(maxsize=256)
def t_quantile(probability: float, df: int) -> float:
    """The t with P(T <= t) = probability, 0.5 <= probability < 1."""
    if not 0.5 <= probability < 1 or df < 1:
        raise ValueError(f"probability: got {probability}; allowed: [0.5, 1); df: got {df}; allowed: 1 or more")
    low, high = 0.0, 1.0
    while t_cdf(high, df) < probability:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, df) < probability else (low, middle)
    return (low + high) / 2


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(1 - x))
    return front * _fraction(a, b, x) / a


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of Abramowitz and Stegun 26.5.8, evaluated from its front (Lentz)."""
    tiny = 1e-300
    c, d = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1), tiny)
    value = d
    for m in range(1, 300):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _nonzero(1 + term * d, tiny)
            c = _nonzero(1 + term / c, tiny)
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value


def _nonzero(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny
