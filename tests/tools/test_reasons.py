from __future__ import annotations

from pathlib import Path

import pytest

from bitgate.tools.reasons import DETAIL_LIMIT, REASONS, TABLE, next_step, reason, render, verdict_of

ROOT = Path(__file__).parents[2]


def test_the_documented_page_is_the_table() -> None:
    assert (ROOT / "docs/reasons.md").read_text(encoding="utf-8") == render()


def test_an_unknown_code_is_refused() -> None:
    with pytest.raises(KeyError, match="unknown reason code 'no_such_code'"):
        reason("no_such_code", "something")


def test_every_code_has_one_row_and_each_group_is_sorted() -> None:
    codes = [row.code for rows in TABLE.values() for row in rows]
    assert len(codes) == len(set(codes)) == len(REASONS)
    for rows in TABLE.values():
        assert [row.code for row in rows] == sorted(row.code for row in rows)


def test_no_code_leads_to_a_pass() -> None:
    assert {row.verdict for row in REASONS.values()} <= {"fail", "invalid", "inconclusive"}


@pytest.mark.parametrize(
    ("codes", "verdict"),
    [
        ([], "pass"),
        (["logprobs_differ"], "fail"),
        (["self_test_failed", "logprobs_differ"], "fail"),
        (["logprobs_differ", "weights_differ"], "invalid"),
        (["partial_coverage"], "inconclusive"),
    ],
)
def test_invalid_decides_before_fail_before_inconclusive(codes: list[str], verdict: str) -> None:
    assert verdict_of(reason(code, "seen") for code in codes) == verdict


def test_the_advice_is_that_of_the_deciding_reason() -> None:
    reasons = [reason("partial_coverage", "3 of 4"), reason("logprobs_differ", "1 row")]
    assert next_step(reasons) == REASONS["logprobs_differ"].next


def test_a_detail_is_cut_and_never_holds_a_lone_surrogate() -> None:
    made = reason("capture_json", "\ud800" + "x" * 10_000)
    assert len(made.detail) == DETAIL_LIMIT
    made.detail.encode("utf-8")
