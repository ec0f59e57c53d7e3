from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from bitgate.tools.captures import Capture
from bitgate.tools.compare import pair, self_test, selftest
from bitgate.tools.compare.selftest import FAULTS

Columns = dict[str, np.ndarray]
Make = Callable[..., Capture]


def test_every_fault_is_planted_in_three_windows_and_seen(make: Make, make_columns: Callable[..., Columns]) -> None:
    columns = make_columns(40, 64)
    result = self_test(make(columns, "a"), make(columns, "b"))
    assert result.passed
    assert set(result.seen) == {f"{fault}@{place}" for fault in FAULTS for place in ("first", "random", "last")}
    assert result.windows["first"][0] == 0
    assert result.windows["last"][1] == 39 * 64 + 48


def test_nan_outside_the_mask_and_the_largest_token_are_no_obstacle(make: Make, columns: Columns) -> None:
    columns["logprob"].view(np.uint32)[columns["mask"] == 0] = 0x7F800001
    columns["token_id"][:] = 2**63 - 1
    assert self_test(make(columns, "a"), make(columns, "b")).passed


@pytest.mark.parametrize("logprob", [-1e9, float(np.finfo(np.float32).min)])
def test_what_is_planted_in_large_logprobs_does_not_vanish_in_them(
    make: Make, columns: Columns, logprob: float
) -> None:
    """Beside -1e9 a change of 0.9 is nothing in float32; below the lowest number there is none."""
    columns["logprob"][:] = logprob
    result = self_test(make(columns, "a"), make(columns, "b"))
    assert result.passed
    planted = {name.split("@")[0] for name in result.seen}
    assert planted >= {"one_ulp", "last_row_wrong", "sign_of_zero", "negated"}


def test_the_issue_names_these_faults() -> None:
    assert set(FAULTS) >= {
        "one_ulp", "swapped_rows", "sign_of_zero", "one_sided_nan", "dropped_row", "off_by_one_token", "negated",
        "last_row_wrong",
    }  # fmt: skip


def test_a_comparison_that_uses_a_tolerance_is_exposed(
    make: Make, columns: Columns, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = pair.RowComparer.compare

    def tolerant(self: pair.RowComparer, chunk: object, *arguments: object) -> np.ndarray:
        rows = exact(self, chunk, *arguments)  # type: ignore[arg-type]
        a, b = chunk.a["logprob"][rows], chunk.b["logprob"][rows]  # type: ignore[attr-defined]
        close = np.isclose(a, b, rtol=1e-5, atol=0)
        self.different -= int(close.sum())
        return rows[~close]

    monkeypatch.setattr(pair.RowComparer, "compare", tolerant)
    result = self_test(make(columns, "a"), make(columns, "b"))
    assert not result.passed
    assert {name.split("@")[0] for name in result.missed} == {"one_ulp", "sign_of_zero"}


def test_a_comparison_that_looks_at_nothing_is_exposed(
    make: Make, columns: Columns, monkeypatch: pytest.MonkeyPatch
) -> None:
    blind = pair.PairResult("a", "b", (), 1, 1, 1, 1)
    monkeypatch.setattr(selftest, "compare_sides", lambda a, b: blind)
    result = self_test(make(columns, "a"), make(columns, "b"))
    assert result.seen == () and not result.passed


def test_a_fault_that_the_data_cannot_show_is_not_counted_as_seen(make: Make, columns: Columns) -> None:
    constant = {**columns, "logprob": np.full(256, -0.1, np.float32)}
    result = self_test(make(constant, "a"), make(constant, "b"))
    assert result.passed
    assert {name.split("@")[0] for name in result.not_plantable} == {"swapped_rows", "off_by_one_row"}


def test_the_choices_can_be_repeated(make: Make, columns: Columns) -> None:
    a, b = make(columns, "a"), make(columns, "b")
    assert self_test(a, b) == self_test(a, b)


def test_one_row_is_enough_for_a_self_test(make: Make, columns: Columns) -> None:
    one = {name: values[:1] for name, values in columns.items()}
    assert self_test(make(one, "a"), make(one, "b")).passed


def test_a_far_away_mask_is_found(
    make: Make, make_columns: Callable[..., Columns], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selftest, "SCAN_ROWS", 100)
    columns = make_columns(100, 64)
    columns["mask"][:] = 0
    columns["mask"][3210] = 1
    result = self_test(make(columns, "a"), make(columns, "b"))
    assert result.passed and result.windows["first"][0] == 3210 and result.windows["last"][1] == 3211
