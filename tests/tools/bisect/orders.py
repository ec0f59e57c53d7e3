"""Run by the engine's interpreter: the order in which attention adds up its keys, forwards and backwards, as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from cases import ROWS, traced
from reported_operators import attention, drawn

from bitgate.tools.engines.worker.probes.reductions import over_rows

SEES_TWO, SEES_SIX = 1, 5


def order(row: int, *, backwards: bool) -> dict[str, Any] | None:
    given = {name: drawn(ROWS, 64, seed=number) for number, name in enumerate("qkv")}
    return over_rows(traced(lambda q, k, v: attention(q, k, v, backwards=backwards), given, ()), row)


def main() -> None:
    made = {
        "forwards": order(SEES_SIX, backwards=False),
        "again": order(SEES_SIX, backwards=False),
        "backwards": order(SEES_SIX, backwards=True),
        "of two": order(SEES_TWO, backwards=False),
    }
    sys.stdout.write(json.dumps(made, allow_nan=False))


if __name__ == "__main__":
    main()
