"""Compare rows that are already side by side: token, version and mask first, then the bits of the logprobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bitgate.tools.captures.problems import Problems
from bitgate.tools.captures.rows import Columns
from bitgate.tools.captures.validate import where
from bitgate.tools.compare.log import DifferenceLog

IDENTICAL: Final[Mapping[str, str]] = {
    "token_id": "token_ids_differ",
    "mask": "mask_differs",
    "weight_version": "weight_version_differs",
}
"""What must be the same in a row before its logprobs are compared, and the reason code when it is not."""


@dataclass(frozen=True)
class SideBySide:
    """Aligned chunks: row i of `a` and of `b` have one key; `row_a`, `row_b` are their indices, or the first's."""

    a: Columns
    b: Columns
    row_a: NDArray[np.int64] | int
    row_b: NDArray[np.int64] | int


class RowComparer:
    """Counts compared and differing rows, and what makes rows incomparable."""

    def __init__(self, a: str, b: str, problems: Problems, log: DifferenceLog) -> None:
        self.names, self.problems, self.log = (a, b), problems, log
        self.joined = 0
        self.compared = 0
        self.different = 0
        self.different_outside_mask = 0

    def equal(self, rows: int, masked: int) -> None:
        """Rows that are byte for byte the same on both sides."""
        self.joined += rows
        self.compared += masked

    def compare(self, chunk: SideBySide, unequal_columns: Collection[str] = IDENTICAL) -> NDArray[np.int64]:
        """Compare a chunk, of which only these columns can be unequal.

        Returns the indices in it of the rows whose logprobs differ under both masks.
        """
        a, b = chunk.a, chunk.b
        for column, code in IDENTICAL.items():
            if column in unequal_columns:
                self._identical(code, column, chunk)
        under = a["mask"] != 0
        if "mask" in unequal_columns:
            under &= b["mask"] != 0
        unequal = a["logprob"].view(np.uint32) != b["logprob"].view(np.uint32)
        rows = np.flatnonzero(unequal & under)
        self.joined += len(under)
        self.compared += int(np.count_nonzero(under))
        self.different += len(rows)
        self.different_outside_mask += int(np.count_nonzero(unequal)) - len(rows)
        return rows

    def record(self, chunk: SideBySide, rows: NDArray[np.int64], facets: Columns) -> None:
        """Hand the differing rows to the log; `facets` are columns of just these rows."""
        if not len(rows):
            return
        a, b = chunk.a, chunk.b
        turn = a.get("turn")
        self.log.add(
            {
                "row_a": _indices(chunk.row_a, rows),
                "row_b": _indices(chunk.row_b, rows),
                "sequence": a["sequence"][rows],
                "turn": np.zeros(len(rows), np.int32) if turn is None else turn[rows],
                "position": a["position"][rows],
                "token_id": a["token_id"][rows],
                "a": a["logprob"][rows],
                "b": b["logprob"][rows],
                **facets,
            }
        )

    def _identical(self, code: str, column: str, chunk: SideBySide) -> None:
        left, right = chunk.a.get(column), chunk.b.get(column)
        if left is None or right is None:
            return
        unequal = left != right
        if unequal.any():
            row = int(np.argmax(unequal))
            a, b = self.names
            detail = f"{column} at {where(_key(chunk.a, row))}: {a} has {left[row]}, {b} has {right[row]}"
            self.problems.add(code, int(np.count_nonzero(unequal)), detail)


def _indices(first: NDArray[np.int64] | int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return rows + first if isinstance(first, int) else first[rows]


def _key(columns: Columns, row: int) -> tuple[Any, Any, Any]:
    turn = columns.get("turn")
    return columns["sequence"][row], 0 if turn is None else turn[row], columns["position"][row]
