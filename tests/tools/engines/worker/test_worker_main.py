"""What the worker's main makes of an engine's words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bitgate.tools.engines.worker.engine import EngineError, Perturbation
from bitgate.tools.engines.worker.main import LONGEST_MESSAGE, check_description, failure


def nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


def test_a_description_that_is_json_is_kept() -> None:
    result: dict[str, Any] = {}
    check_description({"stable": {"dtype": "float32"}, "volatile": {}}, result)
    assert result == {"describe": {"stable": {"dtype": "float32"}, "volatile": {}}}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (float("nan"), "not JSON compliant"),
        (object(), "not JSON serializable"),
        ("\ud800", "surrogates not allowed"),
        (10**5000, "digits"),
        (nested(40), "levels deep; allowed: 1048576 bytes, 32 levels"),
        (nested(5000), "RecursionError"),
        ("y" * 2_000_000, "bytes of JSON"),
    ],
    ids=["nan", "object", "surrogate", "long number", "deep", "very deep", "long"],
)
def test_a_description_that_the_ledger_could_not_keep_is_refused(value: object, words: str) -> None:
    result: dict[str, Any] = {}
    with pytest.raises(EngineError, match=words) as refused:
        check_description({"stable": {"x": value}, "volatile": {}}, result)
    assert (refused.value.code, result) == ("bad_result", {})


def test_a_huge_message_keeps_its_beginning_and_its_end() -> None:
    message = failure(RuntimeError("begin" + "z" * 1_000_000 + "end"))["message"]
    assert len(message) < LONGEST_MESSAGE + 100
    assert message.startswith("RuntimeError: begin")
    assert "end (1000008 characters)" in message


def test_a_canary_in_a_weight_that_is_nan_can_be_reported() -> None:
    info = Perturbation("norm.weight", 0, float("nan"), 1.0, lambda: None).info()
    assert json.loads(json.dumps(info, allow_nan=False))["before"] == "nan"
