from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bitgate.server.sanitise import Cleaner, clean_text, compact_json, shrink

ANY_TEXT = st.text(st.characters(exclude_categories=()))
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner),
    max_leaves=20,
)


@given(ANY_JSON)
def test_whatever_is_cleaned_can_be_sent(value: Any) -> None:
    compact_json(Cleaner().clean(value)).encode("utf-8")


def test_lone_surrogates_and_nul_become_replacement_characters() -> None:
    assert clean_text("a\udce9b\x00c\ud83d") == "a\ufffdb\ufffdc\ufffd"
    assert clean_text("ordinary é 🙂") == "ordinary é 🙂"


def test_numbers_that_are_not_finite_become_null_and_are_named() -> None:
    cleaner = Cleaner()

    assert cleaner.clean({"a": math.nan, "b": [1.0, -math.inf], "c": 1e300}) == {
        "a": None,
        "b": [1.0, None],
        "c": 1e300,
    }
    assert cleaner.non_finite == ["a", "b[1]"]


def test_deep_nesting_ends() -> None:
    value: Any = 1
    for _ in range(5000):
        value = [value]

    assert len(compact_json(Cleaner().clean(value))) < 200


def test_shrinking_says_what_was_left_out() -> None:
    assert shrink(list(range(9)), 2, 10) == [0, 1, "… 7 more"]
    assert shrink({"k": "x" * 99}, 2, 10) == {"k": "xxxxxxxxx…"}
    assert json.loads(compact_json(shrink({str(i): i for i in range(50)}, 2, 10)))["…"] == "42 more"
