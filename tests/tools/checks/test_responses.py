"""A rollout's sampled tokens, read back to be fed to a trainer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bitgate.tools.checks.responses import with_responses
from bitgate.tools.config.workloads import TokenSequence
from bitgate.tools.engines.worker.capture import CaptureWriter
from bitgate.tools.errors import VerdictError

PROMPTS = tuple(TokenSequence(tuple(range(length))) for length in (3, 5, 2))
WEIGHTS = {"digest": "ab" * 32}


def rollout(folder: Path, answers: dict[int, int], shift: int = 0) -> list[Path]:
    """Sequence -> how many tokens were sampled; tokens of sequence n are 100 n, 100 n + 1, …"""
    with CaptureWriter(folder, engine="t", role="rollout", weights=WEIGHTS) as writer:
        for number, count in answers.items():
            start = len(PROMPTS[number % len(PROMPTS)].prompt) + shift
            tokens = np.arange(count) + 100 * number
            logprobs = -np.ones(count, np.float32)
            writer.add(
                sequence=number, positions=np.arange(start, start + count), token_ids=np.abs(tokens), logprobs=logprobs
            )
    return [folder]


def test_every_prompt_gets_the_tokens_of_its_own_sequence_in_any_order(tmp_path: Path) -> None:
    made = with_responses(PROMPTS, rollout(tmp_path / "r", {2: 2, 0: 3, 1: 1}))
    assert [s.response for s in made] == [(0, 1, 2), (100,), (200, 201)]
    assert [s.prompt for s in made] == [s.prompt for s in PROMPTS]


def test_a_sequence_that_two_ranks_hold_in_parts_is_put_together(tmp_path: Path) -> None:
    for rank, positions in enumerate(([3, 4], [5])):
        with CaptureWriter(
            tmp_path / "r", engine="t", role="rollout", weights=WEIGHTS, rank=rank, world_size=2
        ) as writer:
            writer.add(sequence=0, positions=positions, token_ids=positions, logprobs=-np.ones(len(positions), "f4"))
    assert with_responses(PROMPTS, [tmp_path / "r"])[0].response == (3, 4, 5)


@pytest.mark.parametrize(("answers", "shift"), [({0: 2, 3: 1}, 0), ({-1: 2}, 0), ({0: 2}, 1), ({1: 2}, -1)])
def test_rows_that_continue_no_prompt_are_invalid(tmp_path: Path, answers: dict[int, int], shift: int) -> None:
    with pytest.raises(VerdictError) as refused:
        with_responses(PROMPTS, rollout(tmp_path / "r", answers, shift))
    assert refused.value.code == "prompts_differ"
