"""What the experiments say of faults once missed, and of faults put into real engines: never a wrong class."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine

MISSED = {
    "a weight kept in another order": "reduction_order",
    "shares of ranks in another order": "reduction_order",
    "autocast left on": "precision",
    "positions shifted inside": "layout_mask",
    "pairs turned for halves": "semantic",
    "a window in the mask": "layout_mask",
    "another scale of the scores": "semantic",
    "the next row of the embedding": "layout_mask",
    "a race between few": "nondeterminism",
    "routing weights not renormalised": "semantic",
    "the same result, then scaled": "semantic",
}
CLASSES = {
    "precision",
    "reduction_order",
    "semantic",
    "post_processing",
    "routing_tie",
    "weight_bytes",
    "layout_mask",
    "batch_variance",
}
CI_FAULTS = 24


@pytest.fixture(scope="module")
def missed(script: Callable[..., str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(script("misses.py"))
    return found


@pytest.mark.parametrize("case", MISSED)
def test_a_kind_of_fault_that_was_once_missed_gets_its_class(missed: dict[str, Any], case: str) -> None:
    assert missed[case]["class"] == MISSED[case], missed[case]


@pytest.fixture(scope="module")
def faults(script: Callable[..., str], checkpoints: Path) -> list[dict[str, Any]]:
    """A stratified choice of the whole matrix (tests/bench/bench_faults.py runs all of it), engines started once."""
    printed = script("lab.py", str(checkpoints), str(CI_FAULTS))
    return [json.loads(line) for line in printed.splitlines() if line.startswith('{"title"')]


def test_every_class_is_put_into_every_pair_of_engines(faults: list[dict[str, Any]]) -> None:
    assert len(faults) == CI_FAULTS
    assert {f["pair"] for f in faults} == {"vllm", "kernels", "transformers"}
    assert {f["label"] for f in faults} >= CLASSES


def test_faults_in_real_engines_are_named_at_the_exact_operator(faults: list[dict[str, Any]]) -> None:
    assert [f for f in faults if "failed" in f] == []
    # A fault of order may leave every bit as it was on a model this small: then there is nothing to name.
    shown = [f for f in faults if f["class"] is not None]
    assert len(shown) >= 0.8 * CI_FAULTS
    unknown = [f for f in shown if f["class"] == "unknown"]
    assert len(unknown) <= 0.05 * CI_FAULTS, unknown
    wrong = [f for f in shown if f not in unknown and not (f["exact"] and f["class"] == f["label"])]
    assert wrong == []


def test_the_script_of_every_fault_reproduces_it(faults: list[dict[str, Any]]) -> None:
    # Other tokens or positions have no operator to show: the input itself is the finding.
    operators = [f for f in faults if f["class"] is not None and f["found"] not in ("token_ids", "positions")]
    assert [f["title"] for f in operators if not f["reproduces"]] == []
