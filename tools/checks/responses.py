"""The tokens a rollout sampled, read back from its capture to be fed to the trainer as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bitgate.tools.captures.read import open_capture
from bitgate.tools.captures.rows import read_column
from bitgate.tools.config.workloads import TokenSequence
from bitgate.tools.errors import VerdictError


def with_responses(prompts: Sequence[TokenSequence], folders: Sequence[Path]) -> list[TokenSequence]:
    """The workload's prompts, each followed by the tokens that the capture holds for it.

    Raises:
        VerdictError: the capture's rows do not continue these prompts (`prompts_differ`).
    """
    rows = open_capture(folders, name="rollout").rows
    with rows.open() as opened:
        sequence, position, token = (
            read_column(opened, name, 0, rows.count) for name in ("sequence", "position", "token_id")
        )
    made = list(prompts)
    # Rows of a sequence may lie in several shards: bring them together, in their order.
    order = np.argsort(sequence, kind="stable")
    for rows_of in np.split(order, np.flatnonzero(np.diff(sequence[order])) + 1):
        index = int(sequence[rows_of[0]])
        made[index] = _answered(index, prompts, position[rows_of], token[rows_of])
    return made


def _answered(
    index: int, prompts: Sequence[TokenSequence], position: NDArray[np.int64], token: NDArray[np.int64]
) -> TokenSequence:
    if not 0 <= index < len(prompts):
        raise VerdictError("prompts_differ", f"the rollout has sequence {index}, the workload {len(prompts)} prompts")
    start = len(prompts[index].prompt)
    if not np.array_equal(position, np.arange(start, start + len(position))):
        raise VerdictError(
            "prompts_differ",
            f"sequence {index}: the rollout's rows are at positions {position[:3].tolist()}…, "
            f"but the workload's prompt ends at {start}",
        )
    return replace(prompts[index], response=tuple(token.tolist()))
