"""Comparing captures: identity, then bits, then statistics."""

from bitgate.tools.compare.legs import THREE_LEGS, compare_legs, compare_views
from bitgate.tools.compare.pair import compare_pair
from bitgate.tools.compare.result import Comparison, PairResult, SelfTest
from bitgate.tools.compare.selftest import self_test

__all__ = [
    "THREE_LEGS",
    "Comparison",
    "PairResult",
    "SelfTest",
    "compare_legs",
    "compare_pair",
    "compare_views",
    "self_test",
]
