"""The demo's acts: what is asked, which verdict it should get, and why that is worth seeing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from bitgate.store.records import Verdict


@dataclass(frozen=True)
class Act:
    title: str
    why: str
    request: dict[str, JsonValue]
    expected: Verdict


ACTS: Final = (
    Act(
        "vLLM as it comes: each prompt alone against the same prompt in company",
        "Kernels are chosen by the number of rows and attention splits by the load, so company changes logprobs.",
        {"check": "batch", "side": "rollout", "options": {"rollout": {"batch_invariant": False}}},
        "fail",
    ),
    Act(
        "The same with batch_invariant, as the side is configured",
        "Fixed row tiles and no KV split: the batch no longer decides which bits come out.",
        {"check": "batch", "side": "rollout"},
        "pass",
    ),
    Act(
        "Decode against prefill, chunked prefill and prefix cache",
        "A trainer recomputes in one prefill what was sampled token by token.",
        {"check": "phase", "side": "rollout"},
        "pass",
    ),
    Act(
        "That rollout against a trainer that uses transformers",
        "Same weights, same tokens, other kernels: the policy that is optimised is not the one that sampled.",
        {"check": "rollout_vs_trainer", "side": "rollout", "trainer": "transformers"},
        "fail",
    ),
    Act(
        "That rollout against a trainer that calls the rollout's kernels",
        "rollout == recompute == first train forward, as fp32 bit patterns, gradients on.",
        {"check": "rollout_vs_trainer", "side": "rollout", "trainer": "trainer"},
        "pass",
    ),
)
