"""The axes a side may declare: what its deployment really uses, and so what a check must have exercised."""

from __future__ import annotations

from typing import Final

AXES: Final[dict[str, str]] = {
    "decode": "tokens are produced one step at a time from a KV cache",
    "chunked_prefill": "a long prompt is prefilled in several chunks",
    "prefix_cache": "a prompt's shared prefix is read from the cache",
    "preemption": "a running sequence is evicted and recomputed",
    "graphs": "CUDA graphs replay the decode step",
    "batching": "several sequences share one forward",
    "packing": "sequences are packed without padding",
    "micro_batch": "a step is split into micro-batches",
    "tensor_parallel": "weights are split over ranks by columns and rows",
    "expert_parallel": "experts live on different ranks",
    "context_parallel": "one sequence is split over ranks",
    "pipeline_parallel": "layers live on different ranks",
}
