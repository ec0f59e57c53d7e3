"""JSON from a stranger: bounded, no duplicate keys, no NaN, no surprise.

The standard parser keeps the last of two equal keys and reads NaN; both would let two readers see two captures.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final, NoReturn

MAX_BYTES: Final = 4 << 20


class StrictJsonError(ValueError):
    """The text is not the JSON that we accept; the message says why."""


def parse(data: bytes) -> Any:
    """The value of `data`.

    Raises:
        StrictJsonError: too large, too deep, not UTF-8, not JSON, duplicate keys, or a number that is not finite.
    """
    if len(data) > MAX_BYTES:
        raise StrictJsonError(f"{len(data)} bytes; at most {MAX_BYTES} are read")
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise StrictJsonError("nested too deep") from None
    except UnicodeDecodeError as error:
        raise StrictJsonError(f"not UTF-8: byte {error.start}") from None
    except StrictJsonError:
        raise
    except ValueError as error:
        raise StrictJsonError(str(error)) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise StrictJsonError(f"key {repeated[:80]!r} appears twice in one object")
    return made


def _refuse(constant: str) -> NoReturn:
    raise StrictJsonError(f"{constant} is not a number in JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise StrictJsonError(f"{text[:40]} is too large for a number")
    return value
