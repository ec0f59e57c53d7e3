from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bitgate.tools.captures import Capture
from bitgate.tools.compare import Comparison, compare_legs, facets, log
from bitgate.tools.compare.artifacts import write_artifacts

Columns = dict[str, np.ndarray]
Make = Callable[..., Capture]
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def different(make: Make, columns: Columns) -> Comparison:
    other = {**columns, "logprob": columns["logprob"] - np.float32(0.5), "phase": columns["position"] % 2}
    found = {"rollout": make(columns, "rollout"), "recompute": make(other, "recompute")}
    return compare_legs(found, required=found)


def test_equal_captures_leave_nothing_to_look_at(make: Make, columns: Columns, tmp_path: Path) -> None:
    found = {"a": make(columns, "a"), "b": make(columns, "b")}
    assert write_artifacts(compare_legs(found, required=()), tmp_path / "out") == ()
    assert not (tmp_path / "out").exists()


def test_the_table_has_one_line_per_differing_row(different: Comparison, tmp_path: Path) -> None:
    write_artifacts(different, tmp_path)
    with (tmp_path / "different_rows.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 192
    first = rows[0]
    assert (first["pair"], first["sequence"], first["position"], first["row_a"]) == (
        "rollout/recompute",
        "0",
        "10",
        "0",
    )
    assert np.float32(first["a"]).view(np.uint32) == int(first["a_bits"], 16)
    assert first["phase:b"] in ("0", "1")


def test_a_long_table_is_cut_and_says_so(
    make: Make, columns: Columns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "TABLE_ROWS", 10)
    monkeypatch.setattr(log, "FLUSH_ROWS", 64)
    other = {**columns, "logprob": columns["logprob"] - np.float32(0.5)}
    found = {"a": make(columns, "a"), "b": make(other, "b")}
    write_artifacts(compare_legs(found, required=()), tmp_path)
    assert len((tmp_path / "different_rows.csv").read_text(encoding="utf-8").splitlines()) == 11
    told = json.loads((tmp_path / "ulp_histogram.json").read_text(encoding="utf-8"))["a/b"]
    assert (told["different"], told["rows_cut_from_table"]) == (192, 182)
    assert sum(told["histogram"].values()) == 192


def test_the_picture_is_a_png_and_its_library_is_imported_only_then(different: Comparison, tmp_path: Path) -> None:
    written = write_artifacts(different, tmp_path)
    assert [(item.name, item.media_type) for item in written] == [
        ("mismatches.png", "image/png"),
        ("different_rows.csv", "text/csv"),
        ("ulp_histogram.json", "application/json"),
    ]
    assert (tmp_path / "mismatches.png").read_bytes()[:8] == PNG


@pytest.mark.parametrize("rows", [1, 2, 300])
def test_histograms_add_up_whatever_the_shape(make: Make, rows: int) -> None:
    rng = np.random.default_rng(rows)
    columns = {
        "sequence": np.sort(rng.integers(0, 10**12, rows)),
        "position": np.arange(rows) + 5_000_000,
        "token_id": np.zeros(rows, np.int64),
        "mask": np.ones(rows, np.uint8),
        "logprob": -rng.random(rows).astype(np.float32),
    }
    other = {**columns, "logprob": columns["logprob"] * 2}
    pair = compare_legs({"a": make(columns, "a"), "b": make(other, "b")}, required=()).pairs["a/b"]
    for histogram in pair.histograms.values():
        assert sum(histogram.different) == sum(histogram.compared) == rows
        assert len(histogram.different) * histogram.width > 5_000_000


def test_large_captures_count_what_was_compared_in_part(
    make: Make, make_columns: Callable[..., Columns], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facets, "TALLY_ALL", 2_000)
    monkeypatch.setattr(facets, "TALLY_ROWS", 64)
    columns = make_columns(160, 64)
    other = {**columns, "logprob": columns["logprob"] * 2}
    pair = compare_legs({"a": make(columns, "a"), "b": make(other, "b")}, required=()).pairs["a/b"]
    histogram = pair.histograms["position"]
    assert histogram.sampled == 6
    assert sum(histogram.different) == 160 * 48
    assert sum(histogram.compared) == pytest.approx(160 * 48, rel=0.1)
    assert all(cluster.compared == 48 for cluster in pair.clusters["sequence"])
