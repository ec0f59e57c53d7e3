"""Captures handed in for a check inside one side: what must differ before equal bits mean a pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitgate.tools.captures.read import Capture, open_capture
from bitgate.tools.checks.handed_in import varied
from bitgate.tools.engines.worker.capture import CaptureWriter

Write = Callable[..., Capture]
ROWS = 8


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """write(name, column=value…, provenance=…): one sequence of eight rows."""

    def build(name: str, *, provenance: Any = None, parallel: Any = None, ranks: int = 1, **columns: Any) -> Capture:
        for rank in range(ranks):
            with CaptureWriter(
                tmp_path / name, engine="t", role="dump", weights={"digest": "ab" * 32},
                provenance=provenance, parallel=parallel, rank=rank, world_size=ranks,
            ) as writer:  # fmt: skip
                writer.add(
                    sequence=rank,
                    positions=np.arange(ROWS),
                    token_ids=np.arange(ROWS),
                    logprobs=-np.arange(1, ROWS + 1, dtype=np.float32) / 7,
                    **columns,
                )
                writer.computed(kind="forward", passes=1)
        return open_capture(tmp_path / name, name=name)

    return build


@pytest.mark.parametrize(
    ("check", "base", "view", "axes"),
    [
        ("phase", {"phase": 1}, {"phase": 0}, ("decode",)),
        ("phase", {"phase": 1}, {"phase": [0, 0, 0, 0, 1, 1, 1, 1]}, ("decode",)),
        ("phase", {"chunk": 0}, {"chunk": [0, 0, 0, 1, 1, 1, 2, 2]}, ("chunked_prefill",)),
        ("phase", {}, {"provenance": {"axes": ["graphs"]}}, ("graphs",)),
        ("phase", {"provenance": {"axes": ["prefix_cache"]}}, {"phase": 1}, ("decode", "prefix_cache")),
        ("batch", {"batch": 1}, {"batch": 8}, ("batching",)),
        ("layout", {"parallel": {"tensor_parallel": 1}}, {"parallel": {"tensor_parallel": 2}}, ("tensor_parallel",)),
        ("layout", {"batch": 1}, {"batch": 4}, ("micro_batch",)),
    ],
)
def test_what_was_varied_is_exercised(write: Write, check: str, base: Any, view: Any, axes: tuple[str, ...]) -> None:
    found = varied(check, write("reference", **base), {"view": write("view", **view)})
    assert (found.reasons, found.coverage.exercised) == ((), axes)


@pytest.mark.parametrize(
    ("check", "base", "view"),
    [
        ("phase", {}, {}),
        ("phase", {"phase": 1}, {"phase": 1}),
        ("phase", {"phase": 1, "batch": 1}, {"phase": 1, "batch": 8}),
        ("phase", {"provenance": {"axes": ["graphs"]}}, {"provenance": {"axes": ["graphs"]}}),
        ("phase", {"provenance": {"host": "a"}}, {"provenance": {"host": "b", "axes": "graphs"}}),
        ("batch", {"batch": 8}, {"batch": 8}),
        ("batch", {"phase": 1}, {"phase": 0}),
        ("layout", {"parallel": {"tensor_parallel": 2}}, {"parallel": {"tensor_parallel": 2}}),
    ],
)
def test_a_view_that_varies_nothing_of_the_check_is_inconclusive(
    write: Write, check: str, base: Any, view: Any
) -> None:
    """Row 3 of the reports: one batch size against another says nothing about decode and prefill."""
    found = varied(check, write("reference", **base), {"view": write("view", **view)})
    assert [item.code for item in found.reasons] == ["axis_not_exercised"]
    assert "view: nothing recorded shows" in found.reasons[0].detail


def test_every_view_must_vary_something(write: Write) -> None:
    views = {"good": write("good", phase=0), "idle": write("idle", phase=1)}
    found = varied("phase", write("reference", phase=1), views)
    assert [item.detail.split(":")[0] for item in found.reasons] == ["idle"]
    assert found.coverage.exercised == ("decode",)


def test_asking_again_needs_no_variation(write: Write) -> None:
    assert varied("repeat", write("reference"), {"again": write("again")}).reasons == ()


@pytest.mark.parametrize("ranks", [1, 3])
def test_values_that_a_column_cannot_have_are_invalid(write: Write, ranks: int) -> None:
    found = varied("phase", write("reference", phase=1), {"view": write("view", phase=7, ranks=ranks)})
    assert [item.code for item in found.reasons] == ["value_out_of_range"]
    assert f"phase 7 in {ranks * ROWS} rows; allowed: 0 to 1" in found.reasons[0].detail


def test_rows_outside_the_mask_show_nothing(write: Write) -> None:
    mask = [0, 1, 1, 1, 1, 1, 1, 1]
    view = write("view", mask=mask, phase=[0, 1, 1, 1, 1, 1, 1, 1])
    found = varied("phase", write("reference", mask=mask, phase=1), {"view": view})
    assert [item.code for item in found.reasons] == ["axis_not_exercised"]
