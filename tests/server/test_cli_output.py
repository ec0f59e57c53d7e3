from __future__ import annotations

from bitgate.server.cli_output import ROWS, figure_lines


def test_rows_that_are_alike_become_a_table_with_aligned_columns() -> None:
    lines = figure_lines(
        "comparisons", {"prefill": {"compared": 256, "different": 0}, "x": {"compared": 8, "different": 12}}
    )
    assert lines == [
        "comparisons  compared  different",
        "prefill           256          0",
        "x                   8         12",
    ]


def test_a_long_table_is_cut_and_says_so() -> None:
    lines = figure_lines("t", {str(i): {"n": i} for i in range(ROWS + 5)})
    assert len(lines) == ROWS + 2
    assert lines[-1] == "… 5 more; --json shows all"


def test_what_is_no_table_is_one_short_line() -> None:
    assert figure_lines("rows", 3) == ["rows: 3"]
    assert figure_lines("worst", {"a": {"x": 1}, "b": 2}) == ['worst: {"a": {"x": 1}, "b": 2}']
    assert len(figure_lines("long", list(range(1000)))[0]) == 200
