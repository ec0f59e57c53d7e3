"""vLLM's options: what a call may try, what bitgate sets itself, and the names of `EngineArgs`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from bitgate.tools.config.sides import Side
from bitgate.tools.engines.base import Option
from bitgate.tools.engines.interpreters import dataclass_fields
from bitgate.tools.errors import RequestError, unknown_name

INVARIANT: Final = Option("batch_invariant", "flag", ("attention", "products"))
"""One part alone, of a CPU, is for localising and for measuring: tiles of queries, or tiles of rows."""

CALL_OPTIONS: Final = (
    INVARIANT,
    Option("enforce_eager", "flag"),
    Option("enable_prefix_caching", "flag"),
    Option("enable_chunked_prefill", "flag"),
    Option("async_scheduling", "flag"),
    Option("disable_cascade_attn", "flag"),
    Option("enable_expert_parallel", "flag"),
    Option("block_size", "count"),
    Option("max_num_batched_tokens", "count"),
    Option("max_num_seqs", "count"),
    Option("max_model_len", "count"),
    Option("long_prefill_token_threshold", "count", least=0),
    Option("num_gpu_blocks_override", "count"),
    Option("kv_cache_memory_bytes", "count"),
    Option("gpu_memory_utilization", "fraction"),
    Option("tensor_parallel_size", "count"),
    Option("seed", "count", least=0),
    Option("optimization_level", "count", least=0),
    Option("dtype", "name", ("auto", "bfloat16", "float16", "float32", "half")),
    Option("kv_cache_dtype", "name"),
    Option("quantization", "name"),
    Option("attention_backend", "name"),
    Option("linear_backend", "name"),
    Option("moe_backend", "name"),
    Option(
        "compilation_config",
        "table",
        keys=(
            Option("mode", "count", least=0),
            Option("cudagraph_mode", "name", ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")),
        ),
    ),
)
"""What a call may try for one run: choices of kernel, batch and cache. Nothing here names code, a file or a host."""

OURS: Final = frozenset({"batch_invariant"})

SET_BY_BITGATE: Final = {
    "model": "it is [model.NAME] path",
    "disable_log_stats": "the worker keeps its own record",
}

# EngineArgs of vLLM 0.26 and 0.32 that matter when the interpreter's own source cannot be read (a container, a host).
RECORDED: Final = frozenset(
    [
        "additional_config",
        "all2all_backend",
        "async_scheduling",
        "attention_backend",
        "attention_config",
        "block_size",
        "code_revision",
        "compilation_config",
        "config_format",
        "cpu_offload_gb",
        "cudagraph_capture_sizes",
        "data_parallel_size",
        "dcp_kv_cache_interleave_size",
        "decode_context_parallel_size",
        "disable_cascade_attn",
        "disable_custom_all_reduce",
        "disable_hybrid_kv_cache_manager",
        "disable_sliding_window",
        "distributed_executor_backend",
        "download_dir",
        "dtype",
        "enable_chunked_prefill",
        "enable_dbo",
        "enable_eplb",
        "enable_expert_parallel",
        "enable_prefix_caching",
        "enable_sleep_mode",
        "enforce_eager",
        "eplb_config",
        "expert_placement_strategy",
        "generation_config",
        "gpu_memory_utilization",
        "hf_config_path",
        "hf_overrides",
        "hf_token",
        "ignore_patterns",
        "kernel_config",
        "kv_cache_dtype",
        "kv_cache_memory_bytes",
        "kv_sharing_fast_prefill",
        "kv_transfer_config",
        "linear_backend",
        "load_format",
        "logits_processors",
        "logprobs_mode",
        "long_prefill_token_threshold",
        "mamba_block_size",
        "mamba_cache_dtype",
        "mamba_cache_mode",
        "mamba_ssm_cache_dtype",
        "max_cudagraph_capture_size",
        "max_logprobs",
        "max_model_len",
        "max_num_batched_tokens",
        "max_num_seqs",
        "max_parallel_loading_workers",
        "model_impl",
        "model_loader_extra_config",
        "moe_backend",
        "num_gpu_blocks_override",
        "optimization_level",
        "override_generation_config",
        "performance_mode",
        "pipeline_parallel_size",
        "prefill_context_parallel_size",
        "prefix_caching_hash_algo",
        "quantization",
        "quantization_config",
        "revision",
        "runner",
        "safetensors_load_strategy",
        "scheduler_cls",
        "scheduling_policy",
        "seed",
        "served_model_name",
        "skip_tokenizer_init",
        "speculative_config",
        "stream_interval",
        "structured_outputs_config",
        "tensor_parallel_size",
        "tokenizer",
        "tokenizer_mode",
        "tokenizer_revision",
        "trust_remote_code",
        "use_tqdm_on_load",
        "worker_cls",
        "worker_extension_cls",
    ]
)


def engine_arguments(python: str | None) -> frozenset[str]:
    """The names that vLLM in this interpreter accepts."""
    return dataclass_fields(python, "vllm.engine.arg_utils", "EngineArgs") or RECORDED


def check_arguments(side: Side, own: Iterable[str]) -> None:
    """Raises RequestError for an option of the side that neither vLLM nor bitgate (`own`) has, or that is not free."""
    known = engine_arguments(side.python) | set(own)
    for name, value in side.options.items():
        field = f"side.{side.name}.options.{name}"
        if name in SET_BY_BITGATE:
            raise RequestError(field, value, f"nothing: {SET_BY_BITGATE[name]}", "Remove it.")
        if name not in known:
            raise unknown_name(field, name, known)
