"""A call's arguments: one published schema and one way to check them, for MCP and for the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from bitgate.tools.errors import RequestError, nearest

WAIT_DEFAULT: Final = 50.0
WAIT_MAX: Final = 55.0
WAIT: Final = "wait_s"
_WAIT_SCHEMA: Final = {
    "type": "number",
    "minimum": 0,
    "maximum": WAIT_MAX,
    "default": WAIT_DEFAULT,
    "description": "Seconds to wait for the run's end. A longer run goes on; get_run waits for it.",
}

M = TypeVar("M", bound=BaseModel)


def input_schema(model: type[BaseModel], *, waits: bool) -> dict[str, Any]:
    """The JSON schema of the arguments: flat, definitions inlined, `wait_s` added for tools that start a run."""
    schema = _inlined(model.model_json_schema(), {})
    properties = {name: _without_title(field) for name, field in schema.get("properties", {}).items()}
    if waits:
        properties[WAIT] = dict(_WAIT_SCHEMA)
    required = {"required": schema["required"]} if schema.get("required") else {}
    return {"type": "object", "properties": properties, **required, "additionalProperties": False}


def _inlined(node: Any, definitions: Mapping[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inlined(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    definitions = node.get("$defs", definitions)
    if "$ref" in node:
        target = definitions[node["$ref"].rpartition("/")[2]]
        return _inlined({**target, **{k: v for k, v in node.items() if k != "$ref"}}, definitions)
    return {key: _inlined(value, definitions) for key, value in node.items() if key != "$defs"}


def _without_title(field: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in field.items() if key != "title"}


def parse(model: type[M], arguments: Mapping[str, Any]) -> M:
    """The typed request.

    Raises:
        RequestError: every problem at once, unknown arguments with the nearest known one.
    """
    try:
        return model.model_validate(_unpacked(model, arguments))
    except ValidationError as error:
        raise _complaint(error, model) from error


def split_wait(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    """The arguments without `wait_s`, and its value."""
    rest = dict(arguments)
    given = rest.pop(WAIT, WAIT_DEFAULT)
    try:
        wait = float(given)
    except (TypeError, ValueError, OverflowError):
        wait = -1.0
    if isinstance(given, bool) or not 0 <= wait <= WAIT_MAX:
        raise RequestError(
            WAIT, given, f"seconds from 0 to {WAIT_MAX:g}", "A longer run goes on; get_run waits for it."
        )
    return rest, wait


def _unpacked(model: type[BaseModel], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Objects and lists that a weak client sent as JSON text, taken as what they are, where the field is not text."""
    return {name: _from_text(model, name, value) for name, value in arguments.items() if value is not None}


def _from_text(model: type[BaseModel], name: str, value: Any) -> Any:
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return value
    field = model.model_fields.get(name)
    if field is None or field.annotation in (str, str | None):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _complaint(error: ValidationError, model: type[BaseModel]) -> RequestError:
    problems = error.errors(include_url=False, include_context=False)
    first, *others = problems
    raised = _one(first, model)
    if others:
        more = "; ".join(str(_one(problem, model)) for problem in others[:5])
        raised = RequestError(raised.field, raised.given, raised.allowed, f"{raised.hint} Also: {more}".strip())
    return raised


def _one(problem: Any, model: type[BaseModel]) -> RequestError:
    field = ".".join(str(part) for part in problem["loc"]) or "arguments"
    known = list(model.model_fields)
    if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1:
        return RequestError(field, problem["input"], "one of " + ", ".join(known), nearest(field, known))
    if problem["type"] == "missing":
        described = model.model_fields[field].description if field in model.model_fields else None
        return RequestError(field, None, described or "a value", "It is required.")
    allowed = problem["msg"].removeprefix("Value error, ")
    return RequestError(field, problem["input"], allowed[:1].lower() + allowed[1:])
