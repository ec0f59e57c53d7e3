"""The tokens a rollout sampled, read back from its capture to be fed to the trainer as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

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
    for index in np.unique(sequence).tolist():
        mine = sequence == index
        if index >= len(prompts):
            raise VerdictError(
                "prompts_differ", f"the rollout has sequence {index}, the workload {len(prompts)} prompts"
            )
        start = len(prompts[index].prompt)
        expected = np.arange(start, start + int(mine.sum()))
        if not np.array_equal(position[mine], expected):
            raise VerdictError(
                "prompts_differ",
                f"sequence {index}: the rollout's rows are at positions {position[mine][:3].tolist()}…, "
                f"but the workload's prompt ends at {start}",
            )
        made[index] = replace(made[index], response=tuple(token[mine].tolist()))
    return made
