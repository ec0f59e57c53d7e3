"""What the review page makes of text and numbers of others."""

from __future__ import annotations

import pytest

from bitgate.server.review import plots, words
from bitgate.store.records import Evidence


def evidence(**changes: object) -> Evidence:
    body = {
        "id": "ev_1",
        "run_id": "run_1",
        "tool": "run_compare",
        "request": {},
        "started_at": "t",
        "finished_at": "t",
    }
    body |= {"verdict": "pass", "summary": "s", "next": "n", "grade": "observed", **changes}
    return Evidence.model_validate(body)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("a\x00b\x1b[31m", "a\ufffdb\ufffd[31m"),
        ("\u202etxt", "\\u202etxt"),
        ("a\u200bb", "a\\u200bb"),
        ("\ud800", "\ufffd"),
        ("line\nline\tend", "line\nline\tend"),
        ("<b>", "<b>"),
    ],
)
def test_control_and_direction_characters_become_visible(text, shown):
    assert words.plain(text) == shown


def test_long_text_is_cut_and_says_how_long_it_was():
    assert words.plain("x" * 5000).endswith("… (5,000 characters; download the evidence for the rest)")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1234567, "1,234,567"),
        (0.000123456789, "0.000123457"),
        (True, "yes"),
        (None, "—"),
        ([1, "a"], '[1, "a"]'),
        ("x", "x"),
    ],
)
def test_figures_are_short(value, shown):
    assert words.figure(value) == shown


@pytest.mark.parametrize(
    ("request_", "line"),
    [
        ({"check": "batch", "side": "rollout", "workload": None}, "bitgate call run_compare check=batch side=rollout"),
        ({"options": {"rollout": {"x": True}}}, "bitgate call run_compare options.rollout.x=true"),
        ({"batch_sizes": [1, 2]}, "bitgate call run_compare batch_sizes='[1, 2]'"),
        ({"note": "it's; rm -rf /"}, "bitgate call run_compare note='it'\\''s; rm -rf /'"),
        ({"side": "x", "imported": {"bundle": "b"}}, "bitgate call run_compare side=x"),
    ],
)
def test_the_reproduce_line_can_be_pasted_into_a_shell(request_, line):
    assert words.reproduce(evidence(request=request_)) == line


def test_an_interval_is_drawn_in_order_and_said_in_words():
    shown = plots.interval(evidence(figures={"ratio": 0.9, "ratio_low": 0.85, "ratio_high": 0.95}), 0.7)
    assert shown.floor < shown.low < shown.middle < shown.high < shown.one
    assert shown.label == "0.900 of the baseline, from 0.850 to 0.950; floor 0.70"


@pytest.mark.parametrize(
    "figures", [{}, {"ratio_low": 0.8}, {"ratio_low": "x", "ratio_high": 1}, {"ratio_low": True, "ratio_high": 1}]
)
def test_no_interval_is_drawn_from_half_of_one(figures):
    assert plots.interval(evidence(figures=figures), 0.7) is None


def test_kl_by_step_is_a_line_with_a_point_a_step():
    shown = plots.by_step(evidence(figures={"kl_by_step": [0.002, 0.1, 29.9]}))
    assert (len(shown.points.split()), shown.top, shown.last) == (3, "29.9", "3")
    assert plots.by_step(evidence(figures={"kl_by_step": [1.0]})) is None
