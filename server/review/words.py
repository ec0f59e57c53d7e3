"""Text of others, made fit to be shown: cut, without control characters, with direction tricks made visible."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any, Final

from pydantic import JsonValue

from bitgate.server.sanitise import clean_text
from bitgate.store.records import Evidence

LIMIT: Final = 2_000
_CONTROL: Final = re.compile(r"[\u0000-\u0008\u000b-\u001f\u007f-\u009f]")
_DIRECTION: Final = re.compile(r"[\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")


def plain(text: object, limit: int = LIMIT) -> str:
    """One piece of text, harmless: escaping is the template's work, everything else is done here."""
    whole = str(text)
    cut = clean_text(whole[: limit + 1])
    cut = _DIRECTION.sub(lambda match: f"\\u{ord(match[0]):04x}", _CONTROL.sub("�", cut))
    return (
        cut
        if len(whole) <= limit
        else f"{cut[:limit]}… ({len(whole):,} characters; download the evidence for the rest)"
    )


def figure(value: JsonValue) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "—"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, str):
        return plain(value, 400)
    return plain(json.dumps(value, allow_nan=False, ensure_ascii=False)[:2000], 400)


def moment(text: str) -> str:
    """`2026-11-30 11:00:01 UTC`"""
    try:
        return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M:%S UTC")
    except ValueError:
        return plain(text, 40)


def short(digest: str) -> str:
    return digest[:12]


def reproduce(evidence: Evidence) -> str:
    """The command line that makes this evidence again; arguments at their defaults left out."""
    words = [f"bitgate call {evidence.tool}"]
    for name, value in evidence.request.items():
        if value not in (None, {}, [], "") and name != "imported":
            words += list(_arguments(name, value))
    return plain(" ".join(words), 1000)


def _arguments(name: str, value: Any) -> list[str]:
    if isinstance(value, dict):
        return [word for key, inner in value.items() for word in _arguments(f"{name}.{key}", inner)]
    text = value if isinstance(value, str) else json.dumps(value, allow_nan=False)
    return [f"{name}={_quoted(text)}"]


def _quoted(text: str) -> str:
    return text if re.fullmatch(r"[\w./:,+-]+", text) else "'" + text.replace("'", "'\\''") + "'"
