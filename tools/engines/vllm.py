"""Adapter of the vLLM engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pydantic import JsonValue

from bitgate.tools.config.sides import Model, Side
from bitgate.tools.config.workloads import TokenSequence
from bitgate.tools.engines.base import Adapter, Options, check_table
from bitgate.tools.engines.eviction import blocks_for_eviction
from bitgate.tools.engines.interpreters import platform_of
from bitgate.tools.engines.vllm_options import CALL_OPTIONS, INVARIANT, OURS, check_arguments

BLOCK_SIZE: Final = {"cpu": 128, "cuda": 16}
"""vLLM's own defaults (platforms/cpu.py; the common GPU backends)."""
SMALLEST_BLOCK: Final = {"cpu": 32, "cuda": 16}
PARALLEL: Final = {
    "tensor_parallel_size": "tensor_parallel",
    "pipeline_parallel_size": "pipeline_parallel",
    "decode_context_parallel_size": "context_parallel",
    "prefill_context_parallel_size": "context_parallel",
}


class VllmAdapter(Adapter):
    def check_options(self, side: Side) -> None:
        check_table(
            f"options.{side.name}",
            side.tried,
            CALL_OPTIONS,
            "A call may try these; any other argument of vLLM goes into [side.NAME.options].",
        )
        check_arguments(side, OURS)
        INVARIANT.check(f"side.{side.name}.options.batch_invariant", side.options.get("batch_invariant", False))

    def default_axes(self, side: Side) -> tuple[str, ...]:
        options = side.options
        axes = ["decode", "batching", "preemption"]
        axes += ["chunked_prefill"] if options.get("enable_chunked_prefill") is not False else []
        axes += ["prefix_cache"] if options.get("enable_prefix_caching") is not False else []
        axes += ["graphs"] if _uses_graphs(side) else []
        axes += sorted({axis for name, axis in PARALLEL.items() if _above_one(options.get(name))})
        axes += ["expert_parallel"] if options.get("enable_expert_parallel") is True else []
        return tuple(axes)

    def not_applicable(self, side: Side) -> Mapping[str, str]:
        missing = {"packing": "vLLM packs every batch itself", "micro_batch": "vLLM has no micro-batches"}
        if platform_of(side.python) == "cpu":
            missing["graphs"] = "the CPU engine has no graphs"
        return missing

    def variants(self, side: Side, sequences: Sequence[TokenSequence], max_tokens: int) -> Mapping[str, Options]:
        found: dict[str, Options] = {
            "chunked_prefill": _chunks(side, sequences),
            "prefix_cache": {"enable_prefix_caching": True},
        }
        eviction = _eviction(side, sequences, max_tokens)
        if eviction is not None:
            found["preemption"] = eviction
        if platform_of(side.python) != "cpu":
            found["graphs"] = {"enforce_eager": True}
        return found

    def room(self, side: Side, model: Model) -> int:
        given = side.options.get("max_model_len")
        return given if isinstance(given, int) else super().room(side, model)

    def long_lengths(self, side: Side, model: Model, max_tokens: int) -> tuple[int, ...]:
        block = _block_size(side)
        # Just before an edge (decode crosses it), on it, behind it, and with whole blocks to find in the cache.
        wanted = (block - max_tokens // 2 - 1, block, block + 1, 2 * block + 3)
        limit = self.room(side, model) - max_tokens
        return tuple(length for length in wanted if 0 < length <= limit)


def _uses_graphs(side: Side) -> bool:
    compilation = side.options.get("compilation_config")
    off = isinstance(compilation, dict) and compilation.get("cudagraph_mode") == "NONE"
    return platform_of(side.python) != "cpu" and side.options.get("enforce_eager") is not True and not off


def _above_one(value: JsonValue) -> bool:
    return isinstance(value, int) and value > 1


def _block_size(side: Side) -> int:
    given = side.options.get("block_size")
    return given if isinstance(given, int) else BLOCK_SIZE[platform_of(side.python) or "cuda"]


def _chunks(side: Side, sequences: Sequence[TokenSequence]) -> Options:
    """A budget that cuts the longest prompt into three, at no multiple of a tile or block."""
    longest = max((len(s.prompt) for s in sequences), default=0)
    budget = max(17, longest // 3) | 1
    return {
        "enable_chunked_prefill": True,
        "max_num_batched_tokens": budget,
        "max_num_seqs": min(budget, _max_seqs(side)),
    }


def _max_seqs(side: Side) -> int:
    given = side.options.get("max_num_seqs")
    return given if isinstance(given, int) else 256


def _eviction(side: Side, sequences: Sequence[TokenSequence], max_tokens: int) -> Options | None:
    """The deployed block size where it can be done with it, else the smallest one that the platform has."""
    prompts = [len(s.prompt) for s in sequences]
    smallest = SMALLEST_BLOCK[platform_of(side.python) or "cuda"]
    for block in dict.fromkeys((_block_size(side), smallest)):
        count = blocks_for_eviction(prompts, max_tokens, block, _max_seqs(side))
        if count is not None:
            longest = max(prompts) + max_tokens
            return {"block_size": block, "num_gpu_blocks_override": count, "max_model_len": longest + 1}
    return None


ADAPTER = VllmAdapter("vllm", decodes=True, trains=False, packings=("engine",))
