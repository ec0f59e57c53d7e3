"""Canonical JSON and clean text: the exact bytes that are hashed, and what may never be in them."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Mapping
from typing import Any

from bitgate.store.errors import Refused

MAX_BODY_BYTES = 32 << 20
MAX_LABEL = 300
MAX_DEPTH = 100  # pydantic reads 200 levels, SQLite 1000


def clean_text(text: str) -> str:
    """Text that every UTF-8 reader accepts: a lone surrogate becomes its visible escape."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def clean_label(field: str, text: str) -> str:
    """A short one-line text for a column; control characters become visible escapes."""
    shown = "".join(
        c.encode("unicode_escape").decode("ascii") if unicodedata.category(c) == "Cc" else c for c in clean_text(text)
    )
    if not shown.strip() or len(shown) > MAX_LABEL:
        raise Refused("bad_label", f"{field}: got {shown[:60]!r}; allowed is 1 to {MAX_LABEL} characters, not blank")
    return shown


def canonical(body: Mapping[str, Any]) -> str:
    """JSON with sorted keys, no spaces, UTF-8, finite numbers as Python's shortest repr.

    Raises: Refused (`bad_body`, `body_too_large`) naming the field.
    """
    try:
        clean = _clean(body, "body", 0)
        text = json.dumps(clean, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except ValueError as error:  # an integer of thousands of digits
        raise Refused("bad_body", f"body: {error}") from None
    size = len(text.encode("utf-8"))
    if size > MAX_BODY_BYTES:
        raise Refused("body_too_large", f"body: {size} bytes; at most {MAX_BODY_BYTES}: store it as an artifact")
    return text


def _clean(value: Any, where: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise Refused("bad_body", f"{where[:80]}…: nested over {MAX_DEPTH} deep; store it as an artifact")
    if isinstance(value, str):
        return clean_text(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return _finite(value, where)
    if isinstance(value, Mapping):
        return _clean_object(value, where, depth)
    if isinstance(value, list | tuple):
        return [_clean(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value)]
    raise Refused("bad_body", f"{where}: got a {type(value).__name__}; allowed are JSON values")


def _finite(value: float, where: str) -> float:
    if math.isfinite(value):
        return value
    raise Refused("bad_body", f"{where}: got {value}; only finite numbers are stored: use null and a flag beside it")


def _clean_object(value: Mapping[Any, Any], where: str, depth: int) -> dict[str, Any]:
    clean: dict[str, Any] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise Refused("bad_body", f"{where}: key {key!r} is a {type(key).__name__}; keys are strings")
        name = clean_text(key)
        if name in clean:
            raise Refused("bad_body", f"{where}: two keys read {name!r} once unreadable characters are escaped")
        clean[name] = _clean(item, f"{where}.{name}", depth + 1)
    return clean
