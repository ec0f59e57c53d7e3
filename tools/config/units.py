"""Durations and sizes as people write them: "90s", "24h", "10 GiB"."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import BeforeValidator, Field

SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
DECIMAL: Final = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
BYTES: Final = {**DECIMAL, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def _scaled(value: object, units: dict[str, int], example: str) -> object:
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
    unit = next((u for u in units if match and u.lower() == match[2].lower()), None)
    if match is None or (match[2] and unit is None):
        raise ValueError(f"write a number and one of {', '.join(units)}, such as {example!r}")
    return float(match[1]) * (units[unit] if unit else 1)


def parse_seconds(value: object) -> object:
    return _scaled(value, SECONDS, "24h")


def parse_bytes(value: object) -> object:
    scaled = _scaled(value, BYTES, "10 GiB")
    return int(scaled) if isinstance(scaled, float) else scaled


Seconds = Annotated[float, BeforeValidator(parse_seconds), Field(gt=0, allow_inf_nan=False)]
"""Seconds, given as a number or as "90s", "30m", "24h", "7d"."""

ByteSize = Annotated[int, BeforeValidator(parse_bytes), Field(ge=0)]
"""Bytes, given as a number or as "500 MB", "10 GiB"."""
