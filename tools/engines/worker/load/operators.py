"""Time by operator class in one turn, by torch's profiler. The turn is slower for it, and counts for no ratio."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")

CLASSES: tuple[tuple[str, str], ...] = (
    ("communication", r"nccl|all_?reduce|all_?gather|reduce_scatter|all_?to_?all|gloo|c10d|broadcast_"),
    ("experts", r"moe|expert|grouped_gemm|group_gemm"),
    ("kv_cache", r"reshape_and_cache|kv_cache_update|concat_and_cache|slot_mapping"),
    ("attention", r"attention|attn|flash|mla|sdpa|paged|unified_attention"),
    ("recurrent", r"mamba|ssm|conv1d|scan|delta_rule|gated_delta"),
    ("quantisation", r"quant|fp8|scaled_|nvfp4|e4m3"),
    ("matmul", r"gemm|matmul|::mm$|::bmm|addmm|linear|onednn_mm|weight_packed|cutlass|cublas|nvjet|::mv$|::dot$"),
    ("norm", r"norm"),
    ("rope", r"rotary|rope"),
    ("activation", r"silu|gelu|swiglu|relu|act_and_mul|sigmoid|tanh"),
    ("embedding", r"embedding|::gather|index_select"),
    ("sampling", r"softmax|top_?k|argmax|multinomial|logsumexp|sort|sampler|exponential|cumsum"),
    ("copy", r"copy|::cat|::stack|::to$|clone|contiguous|fill|zero|memcpy|memset|::empty|arange|::index|scatter|pad"),
    ("elementwise", r"::add|::mul|::sub|::div|::pow|::neg|::where|::(eq|lt|gt|le|ge|ne)$|bitwise|logical|::exp|::log"),
    ("shape", r"::view|reshape|permute|transpose|::slice|::select|strided|expand|squeeze|split|narrow|detach|::t$"),
)  # fmt: skip
"""Class -> pattern on the operator's name; the first that fits. A new class is one row."""
_PATTERNS = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in CLASSES)


def class_of(operator: str) -> str:
    return next((name for name, pattern in _PATTERNS if pattern.search(operator)), "other")


def profiled(work: Callable[[], T]) -> tuple[T, dict[str, Any]]:
    """The work's result, and seconds by class and by operator (the costliest), each operator without what it calls."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    cuda = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities, acc_events=True) as watch:
        result = work()
    return result, summed(timed(watch.key_averages(), cuda))


def timed(events: Iterable[Any], cuda: bool) -> list[tuple[str, float, int]]:
    """(name, seconds without what it calls, calls): on a GPU of its kernels, else of the processor.

    The profiler also gives an operator the time of the kernels that it started: with both, all would count twice.
    """
    field = "self_device_time_total" if cuda else "self_cpu_time_total"
    kept = [event for event in events if not cuda or not str(event.device_type).endswith("CPU")]
    found = [(event.key, float(getattr(event, field, 0.0)) / 1e6, event.count) for event in kept]
    return [item for item in found if item[1] > 0]


def summed(operators: list[tuple[str, float, int]]) -> dict[str, Any]:
    classes: dict[str, float] = {}
    for name, seconds, _ in operators:
        classes[class_of(name)] = classes.get(class_of(name), 0.0) + seconds
    costliest = sorted(operators, key=lambda item: -item[1])[:40]
    return {
        "classes": classes,
        "operators": [{"name": n, "class": class_of(n), "seconds": s, "calls": c} for n, s, c in costliest],
    }
