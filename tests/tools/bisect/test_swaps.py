"""One operator of the inference kernels swapped for its namesake: named, explained, and clean once undone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine

SWAPPED = {
    "rms_norm": "0.attn_norm",
    "fused_add_rms_norm": "0.mlp_norm",
    "rotary_embedding": "0.q",
    "silu_and_mul": "0.act",
}
"""What is swapped -> the first point that can show it."""


@pytest.fixture(scope="module")
def swaps(script: Callable[..., str], tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    printed = script("swap_lab.py", str(tiny), str(tmp_path_factory.mktemp("swaps")), *SWAPPED)
    found = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return {entry["swap"]: entry for entry in found}


@pytest.mark.parametrize("swap", SWAPPED)
def test_an_operator_swapped_for_its_namesake_is_named_and_undone_it_is_clean(swaps: dict[str, Any], swap: str) -> None:
    found = swaps[swap]
    assert (found["point"], found["class"]) == (SWAPPED[swap], "precision"), found
    assert set(found["exit_codes"]) == {1} and found["different_when_undone"] == 0
    assert len(swaps[next(iter(SWAPPED))]["exit_codes"]) == 3
