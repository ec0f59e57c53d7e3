from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitgate.store import Refused
from bitgate.store.canonical import canonical, clean_label

NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(st.characters(codec="utf-8"))
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=20,
)


@settings(max_examples=40)
@given(st.dictionaries(TEXT, VALUES))
def test_canonical_json_is_read_back_equal_and_is_a_fixed_point(body: dict[str, Any]) -> None:
    text = canonical(body)
    assert json.loads(text) == body
    assert canonical(json.loads(text)) == text


@settings(max_examples=40)
@given(st.dictionaries(TEXT, VALUES))
def test_the_order_of_keys_makes_no_difference(body: dict[str, Any]) -> None:
    assert canonical(dict(reversed(body.items()))) == canonical(body)


@given(st.text(st.characters()))
def test_any_text_becomes_utf8(text: str) -> None:
    assert json.loads(canonical({text: text}).encode("utf-8").decode("utf-8"))


def test_a_lone_surrogate_becomes_its_visible_escape() -> None:
    assert json.loads(canonical({"file": "caf\udce9"})) == {"file": "caf\\udce9"}


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite_are_refused_by_name(number: float) -> None:
    with pytest.raises(Refused, match=r"body\.figures\[1\]\.kl: got .*; only finite numbers"):
        canonical({"figures": [0, {"kl": number}]})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({1: "x"}, "key 1 is a int; keys are strings"),
        ({"a": {1, 2}}, r"body\.a: got a set; allowed are JSON values"),
        ({"a": b"x"}, r"body\.a: got a bytes"),
        ({"\udce9": 1, "\\udce9": 2}, "two keys read"),
        ({"n": 10**5000}, "body: Exceeds the limit"),
        ({"x": "x" * (33 << 20)}, "store it as an artifact"),
    ],
)
def test_what_json_cannot_hold_is_refused(body: dict[Any, Any], message: str) -> None:
    with pytest.raises(Refused, match=message):
        canonical(body)


def test_what_is_nested_too_deeply_is_refused() -> None:
    body: dict[str, Any] = {}
    for _ in range(100_000):
        body = {"x": body}
    with pytest.raises(Refused, match="nested over 100 deep"):
        canonical(body)


def test_labels_are_one_line_and_not_blank() -> None:
    assert clean_label("actor", "a\nb\x00c\udce9") == "a\\nb\\x00c\\udce9"
    for wrong in ("", "  \t ", "x" * 301):
        with pytest.raises(Refused, match="actor: got"):
            clean_label("actor", wrong if wrong != "  \t " else "   ")
