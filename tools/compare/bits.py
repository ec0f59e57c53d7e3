"""fp32 values as bit patterns: ordered integers, ulp distances, and what the usual fp32 metrics would show."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ULP_BUCKETS = 34
"""Bucket 0: the sign of zero only; bucket k: ulp distances in (2^(k-2), 2^(k-1)]."""


def ordered(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """fp32 bit patterns as integers that grow with the value; -0.0 and +0.0 are both 0, neighbours differ by 1."""
    bits = values.view(np.int32).astype(np.int64)
    return np.asarray(np.where(bits < 0, -(bits & 0x7FFFFFFF), bits))


def ulp_distance(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.int64]:
    """How many representable fp32 values lie between a and b, per row; 0 for equal values and for -0.0 against +0.0."""
    return np.asarray(np.abs(ordered(a) - ordered(b)))


def ulp_bucket(distance: NDArray[np.int64]) -> NDArray[np.int64]:
    """The histogram bucket of each distance: 0 for 0, then 1, 2, (2, 4], (4, 8], …"""
    exponent = np.frexp(np.maximum(distance - 1, 0).astype(np.float64))[1]
    return np.asarray(np.where(distance == 0, 0, exponent + 1), np.int64)


def bucket_label(bucket: int) -> str:
    if bucket < 3:
        return str(bucket)
    return f"{2 ** (bucket - 2) + 1}-{2 ** (bucket - 1)}"


def fp32_probability_difference(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    """|exp(a) - exp(b)| in fp32, as verl's training/rollout_probs_diff computes it."""
    return np.asarray(np.abs(np.exp(a) - np.exp(b)))


def fp32_k3(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    """exp(d) - d - 1 in fp32 with d = b - a, as verl's rollout_corr k3_kl computes it."""
    with np.errstate(over="ignore"):
        difference = b - a
        return np.asarray(np.exp(difference) - difference - np.float32(1))
