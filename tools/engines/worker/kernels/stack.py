"""The engine's own configuration, built in the trainer's process: what decides every dispatch.

Operators are not named here. vLLM's layers choose their kernel from its configuration (custom ops, IR priorities,
backends, KV cache dtype) when they are built; building the same layers under the same configuration makes the
same choice.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .errors import KvDtypeUnsupported, OperatorWithoutEntry

# Read by vLLM when a batch is scheduled; with splits a row's bits depend on the load (measured on the CPU engine).
SPLIT_KV = "VLLM_CPU_ATTN_SPLIT_KV"


@dataclass(frozen=True)
class Stack:
    """vLLM's configuration for one model, and whether linears run in fixed row tiles."""

    vllm_config: Any
    batch_invariant: bool

    @property
    def dtype(self) -> torch.dtype:
        return self.vllm_config.model_config.dtype

    @property
    def model_config(self) -> Any:
        return self.vllm_config.model_config.hf_text_config

    @property
    def max_model_len(self) -> int:
        return int(self.vllm_config.model_config.max_model_len)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Inside, vLLM layers are built as the engine's model loader builds them."""
        from vllm.config import set_current_vllm_config

        before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        try:
            with set_current_vllm_config(self.vllm_config, check_compile=False):
                yield
        finally:
            torch.set_default_dtype(before)


def build_stack(model_path: str, *, batch_invariant: bool, engine_options: Mapping[str, Any]) -> Stack:
    """The configuration that `LLM(model_path, **engine_options)` would run with.

    Raises: KvDtypeUnsupported; OperatorWithoutEntry when the engine would compile its operators into a graph.
    """
    if batch_invariant:
        os.environ[SPLIT_KV] = "0"
    from vllm.engine.arg_utils import EngineArgs

    _refuse_platform()
    _check_kv_dtype(str(engine_options.get("kv_cache_dtype", "auto")))
    arguments = EngineArgs(model=model_path, **{"skip_tokenizer_init": True, **engine_options})
    stack = Stack(arguments.create_engine_config(), batch_invariant)
    _refuse_compiled(stack)
    _refuse_configuration(stack)
    _as_a_worker_does(stack)
    return stack


def _refuse_platform() -> None:
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        raise OperatorWithoutEntry(
            "attention", f"that of platform {current_platform.device_type}", "the table's rows are for the CPU engine"
        )


def _check_kv_dtype(given: str) -> None:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    allowed = [str(name) for name in CPUAttentionBackend.supported_kv_cache_dtypes]
    if not (torch.cpu._is_avx512_supported() or torch.cpu._is_amx_tile_supported()):
        allowed = [name for name in allowed if not name.startswith("fp8")]
    if given not in [*allowed, "bfloat16", "float16"]:
        raise KvDtypeUnsupported(given, allowed, CPUAttentionBackend.get_name())


def _refuse_compiled(stack: Stack) -> None:
    from vllm.config import CompilationMode

    compilation = stack.vllm_config.compilation_config
    if compilation.mode != CompilationMode.NONE:
        raise OperatorWithoutEntry(
            "rms_norm, silu_and_mul (compiled)",
            f"a graph compiled by {compilation.backend} (mode {CompilationMode(compilation.mode).name})",
            "set enforce_eager = true in the rollout side's options and in this one's",
        )


def _refuse_configuration(stack: Stack) -> None:
    """What the modules would compute in another way than the engine, each by the operator that it changes."""
    model, parallel = stack.vllm_config.model_config, stack.vllm_config.parallel_config
    found = [
        ("linear", model.quantization, None, "the {} quantised product", "use an unquantised checkpoint"),
        ("logits", model.head_dtype, model.dtype, "a head in {}", "leave head_dtype at the model's dtype"),
        ("all_reduce", parallel.tensor_parallel_size, 1, "sums over {} tensor-parallel ranks", "use one rank"),
        (
            "logits scale",
            getattr(model.hf_text_config, "logit_scale", 1.0),
            1.0,
            "logits times {}",
            "use another model",
        ),
    ]
    for operator, value, plain, runs, do in found:
        if value != plain:
            raise OperatorWithoutEntry(operator, runs.format(value), f"{do}, or add an entry to the table")


def _as_a_worker_does(stack: Stack) -> None:
    """What vLLM's worker process sets once (v1/worker/worker_base.py): the order of IR implementations."""
    import vllm.ir

    stack.vllm_config.kernel_config.ir_op_priority.set_default()
    vllm.ir.set_default_torch_wrap(stack.vllm_config.compilation_config.ir_enable_torch_wrap)
