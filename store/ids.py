"""Identifiers and times: ids sort by time, times are RFC 3339 UTC with milliseconds."""

from __future__ import annotations

import secrets
import time
from datetime import UTC, datetime

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford base32: text order is number order
_LENGTH = 20
_RANDOM_BITS = 52


def new_id(prefix: str) -> str:
    """`prefix_` and 20 base32 characters: 48 bits of Unix milliseconds, then 52 random bits."""
    number = time.time_ns() // 1_000_000 << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
    return f"{prefix}_" + "".join(_ALPHABET[number >> shift & 31] for shift in range(5 * _LENGTH - 5, -1, -5))


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
