"""Sequences made by bitgate itself: company to share a batch with, long prompts, and responses to force."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bitgate.tools.config.workloads import TokenSequence, seeded_numbers

COMPANY_LENGTHS = (1, 2, 7, 15, 16, 17, 31, 32, 33, 47, 64, 97, 128, 200)
"""Prompt lengths around tile and KV-block edges; total tokens of a batch sweep with them."""


def forced(sequences: Sequence[TokenSequence], tokens: int, seed: int) -> tuple[TokenSequence, ...]:
    """The sequences, those without a response given a seeded one of `tokens` token ids."""
    ids = _alphabet(sequences)
    return tuple(
        s if s.response else replace(s, response=_draw(ids, tokens, seed, f"response {i}"))
        for i, s in enumerate(sequences)
    )


def company(sequences: Sequence[TokenSequence], count: int, tokens: int, seed: int) -> tuple[TokenSequence, ...]:
    """`count` sequences to keep `sequences` company; every other one shares the first half of one's prompt.

    Shared prefixes are always in the matrix, since some kernels merge attention differently only then (vllm#22103).
    """
    ids = _alphabet(sequences)
    return tuple(_companion(sequences, ids, i, tokens, seed) for i in range(count))


def long_prompts(sequences: Sequence[TokenSequence], lengths: Sequence[int], seed: int) -> tuple[TokenSequence, ...]:
    """Seeded prompts of these lengths, of the workload's own token ids."""
    ids = _alphabet(sequences)
    return tuple(TokenSequence(_draw(ids, n, seed, f"long {i}")) for i, n in enumerate(lengths))


def _companion(sequences: Sequence[TokenSequence], ids: Sequence[int], i: int, tokens: int, seed: int) -> TokenSequence:
    length = COMPANY_LENGTHS[(i // 2) % len(COMPANY_LENGTHS)]
    prompt = _draw(ids, length, seed, f"company {i}")
    if i % 2 == 0:
        shared = sequences[(i // 2) % len(sequences)].prompt
        prompt = shared[: (len(shared) + 1) // 2] + prompt
    return TokenSequence(prompt, _draw(ids, tokens, seed, f"company response {i}"))


def _alphabet(sequences: Sequence[TokenSequence]) -> list[int]:
    """Token ids known to exist in the model's vocabulary: those of the prompts."""
    return sorted({token for s in sequences for token in s.prompt})


def _draw(ids: Sequence[int], count: int, seed: int, label: str) -> tuple[int, ...]:
    return tuple(ids[n % len(ids)] for n in seeded_numbers(seed, label, count))
