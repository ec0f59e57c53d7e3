"""Checks of the rows themselves, a chunk at a time: order, ranges, mask, and logprobs under the mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bitgate.tools.captures.problems import Problems
from bitgate.tools.captures.rows import Columns

LOW_BITS: Final = np.uint32(0x1FFF)
"""fp32 mantissa bits that are zero when a value was widened from fp16 (13 bits) or bf16 (16 bits)."""
INFORMATIVE: Final = np.float32(-(2.0**-4))
"""Nearer to zero, `logit - logsumexp` loses bits by cancellation, and a genuine fp32 value may end in zeros too."""
ROUND_BITS: Final = np.uint32(0x7FFFF)
"""Zero in short decimals and fractions that a person writes (-0.5, -1.25), seldom in a value that was narrowed."""
FEW_ROWS: Final = 4
ENOUGH_ROWS: Final = 16
"""So many rows in a row: a sequence or a rank that was stored with fewer bits than the rest."""
ENOUGH_MIXED: Final = 64
MIXED_SHARE: Final = 0.1
"""Genuine fp32 values computed as `logit - logsumexp` reach a few percent when the logits are large."""
CHUNKS_ALL: Final = 64
CHUNKS_SAMPLED: Final = 8
"""Precision is looked at in the first chunks and then in one of so many: it is a property of how a side stores."""


@dataclass(frozen=True)
class Limits:
    """What the capture says about itself; None where it says nothing."""

    vocab_size: int | None = None
    weight_version: int | None = None


class KeyValidator:
    """Order and ranges of (sequence, turn, position), token ids and weight versions of one side.

    After all chunks: `groups` counts runs of equal sequence numbers, and `ascending` says that no two rows can have the
    same key; otherwise uniqueness needs a look at the groups (`bitgate.tools.compare.join`).
    """

    def __init__(self, name: str, problems: Problems, limits: Limits) -> None:
        self.name, self.problems, self.limits = name, problems, limits
        self.groups = 0
        self.ascending = True
        self._last: tuple[int, int, int] | None = None

    def feed(self, columns: Columns, start: int, *, new_shard: bool) -> None:
        """Check rows `start`… ; chunks come in order and never cross a shard's edge."""
        self._order(columns, start, new_shard)
        tokens = columns["token_id"]
        # As unsigned numbers the negative ones are the largest: one reduction checks both ends.
        if tokens.view(np.uint64).max() >= (self.limits.vocab_size or 1 << 63):
            self._range("token_id", tokens, start, np.arange(len(tokens)))
        versions, wanted = columns.get("weight_version"), self.limits.weight_version
        if versions is not None and wanted is not None:
            self._report("weight_version_differs", versions != wanted, columns, start, f"is not of version {wanted}")

    def _order(self, columns: Columns, start: int, new_shard: bool) -> None:
        sequence = columns["sequence"]
        changes = sequence[1:] != sequence[:-1]
        begins = np.flatnonzero(changes) + 1
        self.groups += len(begins)
        stays = np.flatnonzero(_stays(columns))
        stays = stays[~changes[stays]]
        if len(stays):
            self._unordered(columns, start, stays + 1)
        if self.ascending and not bool((sequence[begins] > sequence[begins - 1]).all()):
            self.ascending = False
        # Rows grow within a group, so its first row has the lowest values; a turn may begin at any position.
        firsts = np.concatenate([[0], begins])
        self._range("sequence", sequence, start, firsts)
        if "turn" in columns:
            self._range("turn", columns["turn"], start, firsts)
        self._range("position", columns["position"], start, np.arange(len(sequence)) if "turn" in columns else firsts)
        self._seam(columns, start, new_shard)

    def _seam(self, columns: Columns, start: int, new_shard: bool) -> None:
        """The step from the last row of the chunk before."""
        first, before = _key(columns, 0), self._last
        self._last = _key(columns, -1)
        if before is None or before[0] != first[0] or new_shard:
            self.groups += 1
        if before is None or first > before:
            return
        self.ascending = False
        if before[0] == first[0] and not new_shard:
            code = "duplicate_key" if before == first else "positions_not_increasing"
            self.problems.add(code, 1, f"{self.name}: {_at(columns, 0, start)} after position {before[2]}")

    def _unordered(self, columns: Columns, start: int, rows: NDArray[np.int64]) -> None:
        for code, equal in (("duplicate_key", True), ("positions_not_increasing", False)):
            chosen = [row for row in rows.tolist() if (_key(columns, row) == _key(columns, row - 1)) is equal]
            if chosen:
                before = int(columns["position"][chosen[0] - 1])
                detail = f"{self.name}: {_at(columns, chosen[0], start)} after position {before}"
                self.problems.add(code, len(chosen), detail)

    def _range(self, name: str, values: NDArray[Any], start: int, rows: NDArray[np.int64]) -> None:
        vocabulary = self.limits.vocab_size if name == "token_id" else None
        looked = values[rows]
        bad = rows[looked < 0 if vocabulary is None else (looked < 0) | (looked >= vocabulary)]
        if len(bad):
            allowed = "0 or more" if vocabulary is None else f"0 to {vocabulary - 1}"
            detail = f"{self.name}: {name} {values[bad[0]]} in row {start + bad[0]}; allowed: {allowed}"
            self.problems.add("value_out_of_range", len(bad), detail)

    def _report(self, code: str, bad: NDArray[np.bool_], columns: Columns, start: int, what: str) -> None:
        if bad.any():
            row = int(np.argmax(bad))
            self.problems.add(code, int(np.count_nonzero(bad)), f"{self.name}: {_at(columns, row, start)} {what}")


class ValueValidator:
    """Mask and logprobs of one side; counts the masked rows and looks for values with too few bits."""

    def __init__(self, name: str, problems: Problems) -> None:
        self.name, self.problems = name, problems
        self.masked = 0
        self._informative = 0
        self._narrow = 0
        self._round = 0
        self._run: int | None = None
        self._chunks = 0

    def feed(self, columns: Columns, start: int | NDArray[np.int64], *, new_shard: bool = False) -> None:
        """`start`: the index of the first of these rows, or the indices of all. Every shard's first chunk is looked at
        for precision: each rank stores for itself."""
        mask, logprob = columns["mask"], columns["logprob"]
        if mask.max() > 1:
            row = int(np.argmax(mask > 1))
            detail = f"{self.name}: mask {mask[row]} at {_at(columns, row, start)}"
            self.problems.add("mask_values", int(np.count_nonzero(mask > 1)), detail)
        self.masked += int(np.count_nonzero(mask))
        # A NaN makes both reductions NaN, so both comparisons false: one look clears a chunk that is sound everywhere.
        if not (logprob.max() <= 0 and logprob.min() > -np.inf):
            self._unsound(columns, mask != 0, start)
        if self._chunks < CHUNKS_ALL or self._chunks % CHUNKS_SAMPLED == 0 or new_shard:
            self._precision(mask, logprob, start)
        self._chunks += 1

    def finish(self) -> None:
        if self._run is not None or self._too_narrow():
            run = "" if self._run is None else f"; {ENOUGH_ROWS} together from row {self._run} on"
            self.problems.add(
                "logprob_precision",
                1,
                f"{self.name}: the low 13 mantissa bits are zero in {self._narrow} of {self._informative} masked "
                f"logprobs (fp32 values end that way once in 8192){run}: they were stored as bf16 or fp16",
            )

    def _too_narrow(self) -> bool:
        informative, narrow = self._informative, self._narrow
        if informative >= ENOUGH_MIXED and narrow >= MIXED_SHARE * informative:
            return True
        if narrow < informative:
            return False
        return informative >= ENOUGH_ROWS or (informative >= FEW_ROWS and self._round * 2 <= informative)

    def _unsound(self, columns: Columns, under: NDArray[np.bool_], start: int | NDArray[np.int64]) -> None:
        logprob = columns["logprob"]
        for code, bad in (
            ("not_finite", under & ~np.isfinite(logprob)),
            ("logprob_positive", under & np.isfinite(logprob) & (logprob > 0)),
        ):
            if bad.any():
                row = int(np.argmax(bad))
                detail = f"{self.name}: logprob {logprob[row]} at {_at(columns, row, start)}"
                self.problems.add(code, int(np.count_nonzero(bad)), detail)

    def _precision(self, mask: NDArray[np.uint8], logprob: NDArray[np.float32], start: int | NDArray[np.int64]) -> None:
        informative = logprob <= INFORMATIVE
        np.logical_and(informative, mask, out=informative)
        self._informative += int(np.count_nonzero(informative))
        bits = logprob.view(np.uint32)
        narrow = (bits & LOW_BITS) == 0
        np.logical_and(narrow, informative, out=narrow)
        count = int(np.count_nonzero(narrow))
        self._narrow += count
        if count:
            exact = (bits[narrow] & ROUND_BITS) == 0
            self._round += int(np.count_nonzero(exact))
        if count >= ENOUGH_ROWS and self._run is None:
            self._find_run(np.flatnonzero(informative), narrow, bits, start)

    def _find_run(
        self,
        rows: NDArray[np.int64],
        narrow: NDArray[np.bool_],
        bits: NDArray[np.uint32],
        start: int | NDArray[np.int64],
    ) -> None:
        """The first ENOUGH_ROWS informative rows that follow each other and are all narrow, most of them not round."""
        few = _in_windows(narrow[rows])
        fractions = _in_windows((bits[rows] & ROUND_BITS) == 0)
        found = np.flatnonzero((few == ENOUGH_ROWS) & (fractions * 2 <= ENOUGH_ROWS))
        if len(found):
            row = int(rows[found[0]])
            self._run = start + row if isinstance(start, int) else int(start[row])


def _in_windows(flags: NDArray[np.bool_]) -> NDArray[np.int64]:
    """How many of each ENOUGH_ROWS flags that follow each other are set."""
    total = np.concatenate([[0], np.cumsum(flags)])
    counts: NDArray[np.int64] = total[ENOUGH_ROWS:] - total[:-ENOUGH_ROWS]
    return counts


def _stays(columns: Columns) -> NDArray[np.bool_]:
    """Where (turn, position) does not grow from a row to the next."""
    position, turn = columns["position"], columns.get("turn")
    stays: NDArray[np.bool_] = position[1:] <= position[:-1]
    return stays if turn is None else (turn[1:] < turn[:-1]) | ((turn[1:] == turn[:-1]) & stays)


def _key(columns: Columns, row: int) -> tuple[int, int, int]:
    turn = columns.get("turn")
    return int(columns["sequence"][row]), 0 if turn is None else int(turn[row]), int(columns["position"][row])


def _at(columns: Columns, row: int, start: int | NDArray[np.int64]) -> str:
    index = start + row if isinstance(start, int) else int(start[row])
    return f"{where(_key(columns, row))} (row {index})"


def where(key: tuple[Any, Any, Any]) -> str:
    """The words for a key (sequence, turn, position)."""
    return f"sequence {int(key[0])}, turn {int(key[1])}, position {int(key[2])}"
