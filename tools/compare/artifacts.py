"""What a person or a script looks at after a comparison: the differing rows, the ulp histogram, and a picture."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import JsonValue

from bitgate.tools.compare.plot import draw
from bitgate.tools.compare.result import Comparison, PairResult, plain

ROWS_FILE: Final = "different_rows.csv"
ULPS_FILE: Final = "ulp_histogram.json"
PLOT_FILE: Final = "mismatches.png"
_COLUMNS: Final = ("sequence", "turn", "position", "token_id", "row_a", "row_b", "a", "b", "ulp")
_BITS: Final = {"a_bits": "a", "b_bits": "b"}


@dataclass(frozen=True)
class Written:
    path: Path
    name: str
    media_type: str


def write_artifacts(comparison: Comparison, folder: Path) -> tuple[Written, ...]:
    """Write what there is to see into `folder`; nothing when no row differs.

    The table holds the first differing rows of each pair; ulp_histogram.json says how many were cut.
    """
    different = {name: pair for name, pair in comparison.pairs.items() if pair.table is not None}
    if not different:
        return ()
    folder.mkdir(parents=True, exist_ok=True)
    _write_rows(folder / ROWS_FILE, different)
    text = json.dumps(_ulps(different), indent=1, allow_nan=False)
    (folder / ULPS_FILE).write_text(text, encoding="utf-8")
    draw(different, folder / PLOT_FILE)
    return (
        Written(folder / PLOT_FILE, PLOT_FILE, "image/png"),
        Written(folder / ROWS_FILE, ROWS_FILE, "text/csv"),
        Written(folder / ULPS_FILE, ULPS_FILE, "application/json"),
    )


def _write_rows(path: Path, pairs: Mapping[str, PairResult]) -> None:
    facets = sorted({name for pair in pairs.values() if pair.table for name in pair.table.columns if ":" in name})
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["pair", *_COLUMNS, *_BITS, *facets])
        for name, pair in pairs.items():
            writer.writerows(_lines(name, pair, facets))


def _lines(name: str, pair: PairResult, facets: list[str]) -> Iterator[list[Any]]:
    table = pair.table
    if table is None:
        return
    columns = table.columns
    listed = [columns[column].tolist() for column in _COLUMNS]
    bits = [[f"0x{item:08x}" for item in columns[side].view(np.uint32).tolist()] for side in _BITS.values()]
    count = len(listed[0])
    others = [columns[facet].tolist() if facet in columns else [""] * count for facet in facets]
    for line in zip(*listed, *bits, *others, strict=True):
        yield [name, *line]


def _ulps(pairs: Mapping[str, PairResult]) -> JsonValue:
    return plain(
        {
            name: {
                "compared": pair.compared,
                "different": pair.different,
                "rows_cut_from_table": pair.table.cut if pair.table else 0,
                "ulp_max": pair.statistics.ulp_max if pair.statistics else 0,
                "histogram": pair.statistics.ulp_histogram if pair.statistics else {},
            }
            for name, pair in pairs.items()
        }
    )
