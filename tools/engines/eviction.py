"""How small a KV cache must be for vLLM's scheduler to evict a running sequence, and still serve every one."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

NULL_BLOCKS = 1
"""vLLM keeps block 0 for itself (v1/core/block_pool.py)."""


def blocks_for_eviction(prompts: Sequence[int], max_tokens: int, block: int, max_seqs: int) -> int | None:
    """The greatest number of blocks with which first-come-first-served admission must evict; None if there is none.

    The greatest, so that most sequences still run together. Shared prefixes are not counted as shared: with them
    the engine needs fewer blocks, and the run itself shows whether it evicted.
    """
    if not prompts:
        return None
    least = max(ceil((prompt + max_tokens) / block) for prompt in prompts)
    most = sum(ceil((prompt + max_tokens) / block) for prompt in prompts)
    for count in range(most, least - 1, -1):
        if evictions(prompts, max_tokens, block, max_seqs, count):
            return count + NULL_BLOCKS
    return None


def evictions(prompts: Sequence[int], max_tokens: int, block: int, max_seqs: int, count: int) -> int:
    """Evictions in the first round: admit in order while prompts fit, grow all by one token a step, evict the last."""
    running: list[list[int]] = []
    free, waiting = count, list(prompts)
    while waiting and len(running) < max_seqs and ceil(waiting[0] / block) <= free:
        prompt = waiting.pop(0)
        free -= ceil(prompt / block)
        running.append([prompt, prompt + max_tokens])
    evicted = 0
    while running and not evicted:
        for sequence in running:
            sequence[0] += 1
            if sequence[0] % block == 1 or block == 1:
                free -= 1
                evicted += free < 0
        done = [sequence for sequence in running if sequence[0] >= sequence[1] - 1]
        free += sum(ceil(sequence[0] / block) for sequence in done)
        running = [sequence for sequence in running if sequence not in done]
    return evicted
