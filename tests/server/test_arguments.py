from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from bitgate.server.arguments import input_schema, parse, split_wait
from bitgate.tools.errors import RequestError
from bitgate.tools.registry import ToolRequest


class Inner(BaseModel):
    size: int


class Request(ToolRequest):
    check: Literal["batch", "phase"] = Field(description="What is held equal")
    side: str = "rollout"
    options: dict[str, Any] = {}
    sizes: list[int] | None = None
    inner: Inner | None = None


def complaint(**arguments: Any) -> str:
    with pytest.raises(RequestError) as caught:
        parse(Request, arguments)
    return str(caught.value)


def test_the_schema_is_flat_and_closed() -> None:
    schema = input_schema(Request, waits=True)

    assert schema["type"] == "object" and schema["additionalProperties"] is False
    assert schema["required"] == ["check"]
    assert set(schema["properties"]) == {"check", "side", "options", "sizes", "inner", "wait_s"}
    assert "$ref" not in str(schema) and "$defs" not in str(schema)
    assert schema["properties"]["wait_s"]["default"] == 50.0 and schema["properties"]["wait_s"]["maximum"] == 55.0


def test_an_unknown_argument_names_the_nearest() -> None:
    text = complaint(check="batch", sidee="x")

    assert "sidee: got 'x'" in text and "Did you mean 'side'?" in text


def test_a_wrong_value_says_what_is_allowed() -> None:
    assert complaint(check="batsch").startswith("check: got 'batsch'; allowed: input should be 'batch' or 'phase'")


def test_a_missing_argument_is_described() -> None:
    assert complaint() == "check: got None; allowed: What is held equal. It is required."


def test_all_problems_are_told_at_once() -> None:
    text = complaint(check="x", sizes=["a"], sidee=1)

    assert "check" in text and "sizes.0" in text and "sidee" in text


def test_a_huge_value_does_not_drown_the_error() -> None:
    assert len(complaint(check="x" * 100_000)) < 1000


def test_lists_and_objects_sent_as_text_are_taken_as_what_they_are() -> None:
    request = parse(Request, {"check": "batch", "options": '{"a": 1}', "sizes": "[1, 2]", "side": "[not json"})

    assert (request.options, request.sizes, request.side) == ({"a": 1}, [1, 2], "[not json")


def test_null_means_left_out() -> None:
    assert parse(Request, {"check": "batch", "side": None}).side == "rollout"


def test_wait_defaults_to_fifty_seconds_and_is_taken_out() -> None:
    assert split_wait({"check": "batch"}) == ({"check": "batch"}, 50.0)
    assert split_wait({"wait_s": "3"}) == ({}, 3.0)


@pytest.mark.parametrize("wait", [56, -1, float("nan"), float("inf"), "soon", True, None, [1], 10**400])
def test_a_wait_that_would_outlast_clients_is_refused(wait: object) -> None:
    with pytest.raises(RequestError, match="seconds from 0 to 55"):
        split_wait({"wait_s": wait})
