"""Building Megatron-Core's GPTModel in this process, and what stands in for CUDA where there is none.

Megatron-Core is written for GPUs, but what its local layers compute is plain torch. Three places keep them from running
on a CPU, and each gets the value that means "nothing to do here" while the engine builds or computes, and no longer:

- `torch.cuda.current_device`, which it asks where to put buffers: the CPU.
- the CUDA random state's `fork` around attention dropout: dropout is 0 here, no random number is drawn.
- `te_general_gemm` in moe_utils, which 0.16 tests with `is not None` but does not define without Transformer Engine
  (NameError): None, as that test expects. This one on GPUs without Transformer Engine as well.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from ..engine import EngineError
from ..weights import CheckpointReader
from .megatron_config import Architecture, architecture_of

PADDING = 128
"""Megatron-LM's --make-vocab-size-divisible-by."""
PASSED = (
    "attention_softmax_in_fp32", "bias_activation_fusion", "bias_dropout_fusion", "moe_router_dtype",
    "moe_token_dispatcher_type", "moe_grouped_gemm", "deterministic_mode",
)  # fmt: skip
"""Options that are TransformerConfig's own arguments."""
GPU_ONLY = {
    "moe_grouped_gemm": "grouped experts are Transformer Engine's",
    "moe_token_dispatcher_type": "only 'allgather' runs without CUDA streams",
}


@dataclass(frozen=True)
class Built:
    """`net` is called (Float16Module where the dtype is a half), `model` is the GPTModel inside."""

    net: torch.nn.Module
    model: torch.nn.Module
    config: Any
    sizes: Architecture
    padded: int
    dtype: torch.dtype
    spec: str


def build(path: str, options: Mapping[str, Any], device: torch.device) -> Built:
    """The model with parameters that hold nothing yet.

    Raises: EngineError `model_not_found`, `unsupported_model`, `unsupported_option`.
    """
    sizes = architecture_of(
        _config_of(path), vocabulary_multiple=int(options.get("make_vocab_size_divisible_by", PADDING))
    )
    dtype = _dtype(path, str(options.get("dtype", "auto")))
    _refuse_gpu_only(options, device)
    with quiet(), standing_in(device):
        spec = _spec(str(options.get("transformer_impl", "auto")), device)
        config = _transformer_config(sizes, options, dtype, device)
        _start_groups(device)
        model = _gpt(config, sizes, spec).to(device)
        net = _half(config, model) if dtype != torch.float32 else model
    return Built(net, model, config, sizes, int(sizes.gpt["vocab_size"]), dtype, spec)


def _config_of(path: str) -> dict[str, Any]:
    try:
        with open(os.path.join(path, "config.json"), encoding="utf-8") as file:
            read: dict[str, Any] = json.load(file)
    except FileNotFoundError as error:
        raise EngineError(
            "model_not_found", f"model path {path!r} has no config.json; correct [model.…] path"
        ) from error
    return read


def _dtype(path: str, wanted: str) -> torch.dtype:
    """`auto` is the checkpoint's own: what its tensors have, not what its config.json says."""
    if wanted != "auto":
        return getattr(torch, wanted)
    reader = CheckpointReader(path)
    name = next((name for name in reader if name.endswith("embed_tokens.weight")), None)
    if name is None:
        raise EngineError("model_not_found", f"model path {path!r} has no safetensors file with an embedding")
    dtype: torch.dtype = reader.tensor(name).dtype
    if dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise EngineError("unsupported_model", f"{path}: its tensors are {dtype}; allowed are 16 or 32 bits")
    return dtype


def _spec(wanted: str, device: torch.device) -> str:
    from megatron.core.models.gpt import gpt_layer_specs

    has = bool(getattr(gpt_layer_specs, "HAVE_TE", False)) and device.type == "cuda"
    if wanted == "transformer_engine" and not has:
        raise EngineError(
            "unsupported_option",
            "option transformer_impl: got 'transformer_engine', which needs a GPU and Transformer Engine beside "
            "Megatron-Core; use 'local'",
        )
    return "local" if wanted == "local" or not has else "transformer_engine"


def _refuse_gpu_only(options: Mapping[str, Any], device: torch.device) -> None:
    for name, why in GPU_ONLY.items():
        if device.type == "cpu" and options.get(name) not in (None, False, "allgather"):
            raise EngineError("unsupported_option", f"option {name}: got {options[name]!r} on a CPU, but {why}")


def _transformer_config(
    sizes: Architecture, options: Mapping[str, Any], dtype: torch.dtype, device: torch.device
) -> Any:
    from megatron.core.transformer.transformer_config import TransformerConfig

    given = {
        **sizes.transformer,
        **{name: options[name] for name in PASSED if name in options},
        "activation_func": F.silu,
        "params_dtype": dtype,
        "bf16": dtype == torch.bfloat16,
        "fp16": dtype == torch.float16,
        "use_cpu_initialization": device.type == "cpu",
        "perform_initialization": False,
    }
    known = {field.name for field in dataclasses.fields(TransformerConfig)}
    lacking = sorted(set(given) - known)
    if lacking:
        raise EngineError(
            "unsupported_option",
            f"Megatron-Core {version()}: its TransformerConfig has no {lacking[0]}, which model or options need",
        )
    try:
        return TransformerConfig(**given)
    except (ValueError, AssertionError) as error:
        raise EngineError("unsupported_option", f"Megatron-Core {version()} refuses its arguments: {error}") from error


def _gpt(config: Any, sizes: Architecture, spec: str) -> torch.nn.Module:
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.models.gpt.gpt_model import GPTModel

    layers = get_gpt_decoder_block_spec(
        config, use_transformer_engine=spec == "transformer_engine", normalization="RMSNorm"
    )
    lacking = sorted(set(sizes.gpt) - set(inspect.signature(GPTModel.__init__).parameters))
    if lacking:
        raise EngineError("unsupported_model", f"Megatron-Core {version()}: its GPTModel has no argument {lacking[0]}")
    model: torch.nn.Module = GPTModel(config, layers, **sizes.gpt)
    return model


def _half(config: Any, model: torch.nn.Module) -> torch.nn.Module:
    """As Megatron's training has it: every parameter in 16 bits, logits handed out in float32."""
    from megatron.core.transformer.module import Float16Module

    wrapped: torch.nn.Module = Float16Module(config, model)
    return wrapped


def version() -> str:
    import importlib.metadata

    return importlib.metadata.version("megatron-core")


def _start_groups(device: torch.device) -> None:
    """One rank is a whole model: its process groups are of size 1, whatever the launcher's world is."""
    from megatron.core import parallel_state, tensor_parallel

    if device.type == "cuda":
        # Megatron-Core puts its buffers on the current device.
        torch.cuda.set_device(device)
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(
            "nccl" if device.type == "cuda" else "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
        )
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel()
        if device.type == "cuda":
            tensor_parallel.model_parallel_cuda_manual_seed(0)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Megatron-Core warns of every optional package that is missing; `describe()` says which are there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def standing_in(device: torch.device) -> Iterator[None]:
    """The three stand-ins of the module's docstring, in place while the block runs."""
    from megatron.core import tensor_parallel
    from megatron.core.transformer.moe import moe_utils

    with contextlib.ExitStack() as stack:
        if not hasattr(moe_utils, "te_general_gemm"):
            stack.enter_context(_set(moe_utils, "te_general_gemm", None))
        if device.type == "cpu":
            tracker = tensor_parallel.get_cuda_rng_tracker()
            stack.enter_context(_set(tracker, "fork", lambda *_: contextlib.nullcontext()))
            stack.enter_context(_set(torch.cuda, "current_device", lambda: device))
        yield


@contextlib.contextmanager
def _set(owner: Any, name: str, value: Any) -> Iterator[None]:
    had = name in vars(owner)
    before = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if had:
            setattr(owner, name, before)
        else:
            delattr(owner, name)
