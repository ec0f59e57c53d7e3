"""Makes a value fit for a client: valid Unicode, finite numbers, and no more bytes than it can take."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import JsonValue

_UNSENDABLE: Final = re.compile(r"[\ud800-\udfff\x00]")
MAX_DEPTH: Final = 32


def clean_text(text: str) -> str:
    """`text` with lone surrogates and NUL replaced by U+FFFD; one lone surrogate would end a stdio server."""
    return _UNSENDABLE.sub("\ufffd", text)


@dataclass
class Cleaner:
    """Cleans JSON values; `non_finite` collects the paths of numbers that were NaN or infinite and became null."""

    non_finite: list[str] = field(default_factory=list)

    def clean(self, value: object, path: str = "", depth: int = 0) -> JsonValue:
        if isinstance(value, str):
            return clean_text(value)
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, float):
            return self._number(value, path)
        if depth >= MAX_DEPTH:
            return "… (nested too deeply to show)"
        if isinstance(value, Mapping):
            return {clean_text(str(key)): self.clean(v, _under(path, key), depth + 1) for key, v in value.items()}
        if isinstance(value, Sequence):
            return [self.clean(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
        return clean_text(str(value))

    def _number(self, value: float, path: str) -> float | None:
        if math.isfinite(value):
            return value
        self.non_finite.append(clean_text(path))
        return None


def _under(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def compact_json(value: object) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def wire_size(value: object) -> int:
    """Bytes of `value` in a result, which carries it twice: structured, and as text for clients that drop that."""
    text = compact_json(value)
    return len(text.encode()) + len(json.dumps(text, ensure_ascii=False).encode())


def shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def shrink(value: JsonValue, items: int, chars: int) -> JsonValue:
    """`value` with every list and table cut to `items` entries and every string to `chars` characters."""
    if isinstance(value, str):
        return shorten(value, chars)
    if isinstance(value, list):
        # A list of objects is typed in its tool's schema, where a text among them is refused by the client.
        named = len(value) > items and not isinstance(value[0], dict)
        rest = [f"… {len(value) - items} more"] if named else []
        return [*(shrink(item, items, chars) for item in value[:items]), *rest]
    if isinstance(value, dict):
        kept: dict[str, Any] = {shorten(k, chars): shrink(v, items, chars) for k, v in list(value.items())[: items * 4]}
        return kept if len(kept) == len(value) else {**kept, "…": f"{len(value) - len(kept)} more"}
    return value
