"""Sequences made by bitgate itself: company to share a batch with, long prompts, and responses to force."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bitgate.tools.config.workloads import TokenSequence, seeded_numbers

COMPANY_LENGTHS = (1, 2, 7, 15, 16, 17, 31, 32, 33, 47, 64, 97, 128, 200)
"""Prompt lengths around tile and KV-block edges; total tokens of a batch sweep with them."""

FAMILY = 9
SHARED_PREFIX = 272
"""vLLM merges the attention of a shared prefix (cascade) from 8 requests and 256 tokens on, and only when every request
of the batch has that prefix (vllm#22103)."""


def forced(sequences: Sequence[TokenSequence], tokens: int, seed: int) -> tuple[TokenSequence, ...]:
    """The sequences, those without a response given a seeded one of `tokens` token ids."""
    ids = _alphabet(sequences)
    return tuple(
        s if s.response else replace(s, response=_draw(ids, tokens, seed, f"response {i}"))
        for i, s in enumerate(sequences)
    )


def company(sequences: Sequence[TokenSequence], count: int, tokens: int, seed: int) -> tuple[TokenSequence, ...]:
    """`count` sequences to keep `sequences` company; every other one shares the first half of one's prompt.

    So prefixes of different lengths are shared by some of a batch; `family` is a batch that shares one as a whole.
    """
    ids = _alphabet(sequences)
    return tuple(_companion(sequences, ids, i, tokens, seed) for i in range(count))


def family(sequences: Sequence[TokenSequence], room: int, tokens: int, seed: int) -> tuple[TokenSequence, ...]:
    """`FAMILY` sequences that all begin with one long prefix and go on each in its own way.

    `room`: the longest sequence that the side takes, 0 where that is not known; then the workload's longest prompt is
    the prefix.
    """
    ids = _alphabet(sequences)
    longest = max((s.prompt for s in sequences), key=len)
    length = min(SHARED_PREFIX, room - FAMILY - tokens) if room else len(longest)
    prefix = (longest + _draw(ids, SHARED_PREFIX, seed, "family"))[: max(length, 1)]
    return tuple(
        TokenSequence(
            (*prefix, ids[i % len(ids)], *_draw(ids, i, seed, f"family {i}")),
            _draw(ids, tokens, seed, f"family response {i}"),
        )
        for i in range(FAMILY)
    )


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
