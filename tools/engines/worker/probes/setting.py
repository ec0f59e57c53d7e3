"""What kernels read besides their arguments: variables of the environment, and torch's own switches.

A program carries both, and is run under both. The switches are set before each run. Variables are read once in a
process, some when a library is loaded: a program that needs others is run by a process of its own (apart.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch

CPU: Final = (
    "ATEN_CPU_CAPABILITY",
    "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "TORCH_LINEAR_FLATTEN_3D",
    "TORCH_MKLDNN_MATMUL_MIN_DIM",
    "TORCH_MKLDNN_MATMUL_MIN_SIZE",
)
CUDA: Final = (
    "CUBLASLT_WORKSPACE_SIZE",
    "CUBLAS_WORKSPACE_CONFIG",
    "DISABLE_ADDMM_CUDA_LT",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
    "TORCH_CUDNN_USE_HEURISTIC_MODE_B",
    "TORCH_CUDNN_V8_API_DISABLED",
)
TRITON: Final = ("TRITON_DEFAULT_FP_FUSION", "TRITON_F32_DEFAULT", "TRITON_INTERPRET")
VLLM: Final = ("VLLM_BATCH_INVARIANT", "VLLM_CPU_ATTN_SPLIT_KV")
"""vLLM's C++ norms take another kernel by the first, which they look up once in a process."""


@dataclass(frozen=True)
class Switch:
    """One of torch's switches; `text` is the statement of a script that sets it, with the value in its place."""

    name: str
    get: Callable[[], Any]
    put: Callable[[Any], Any]
    text: str


def _attribute(path: str) -> Switch:
    owner, _, name = path.rpartition(".")

    def holder() -> Any:
        found: Any = torch
        for part in owner.split("."):
            found = getattr(found, part)
        return found

    return Switch(
        path, lambda: getattr(holder(), name), lambda value: setattr(holder(), name, value), f"torch.{path} = {{!r}}"
    )


def _reduced(dtype: str) -> Switch:
    """Whether partial sums may be kept in the narrow dtype, and whether the inner size may be split."""
    name = f"allow_{dtype}_reduced_precision_reduction"
    path = f"backends.cuda.matmul.{name}"
    matmul = torch.backends.cuda.matmul

    def get() -> list[bool]:
        return [bool(getattr(matmul, name)), bool(getattr(matmul, f"{name}_split_k", True))]

    return Switch(path, get, lambda value: setattr(matmul, name, tuple(value)), f"torch.{path} = tuple({{!r}})")


def _sdp(name: str) -> Switch:
    return Switch(
        f"backends.cuda.{name}",
        getattr(torch.backends.cuda, f"{name}_enabled"),
        getattr(torch.backends.cuda, f"enable_{name}"),
        f"torch.backends.cuda.enable_{name}({{!r}})",
    )


def _library() -> str:
    return str(torch.backends.cuda.preferred_blas_library()).rpartition(".")[2].lower()


ANYWHERE: Final = (
    Switch("num_threads", torch.get_num_threads, torch.set_num_threads, "torch.set_num_threads({!r})"),
    Switch(
        "deterministic_algorithms",
        torch.are_deterministic_algorithms_enabled,
        partial(torch.use_deterministic_algorithms, warn_only=True),
        "torch.use_deterministic_algorithms({!r}, warn_only=True)",
    ),
    _attribute("backends.mkldnn.enabled"),
    _attribute("backends.mkldnn.deterministic"),
    _attribute("backends.mkldnn.matmul.fp32_precision"),
)
ON_A_GPU: Final = (
    _attribute("backends.cuda.matmul.fp32_precision"),
    _attribute("backends.cuda.matmul.allow_fp16_accumulation"),
    _reduced("fp16"),
    _reduced("bf16"),
    Switch(
        "backends.cuda.preferred_blas_library",
        _library,
        torch.backends.cuda.preferred_blas_library,
        "torch.backends.cuda.preferred_blas_library({!r})",
    ),
    _attribute("backends.cudnn.enabled"),
    _attribute("backends.cudnn.benchmark"),
    _attribute("backends.cudnn.deterministic"),
    _attribute("backends.cudnn.conv.fp32_precision"),
    _sdp("flash_sdp"),
    _sdp("mem_efficient_sdp"),
    _sdp("math_sdp"),
    _sdp("cudnn_sdp"),
)
SWITCHES: Final = {switch.name: switch for switch in (*ANYWHERE, *ON_A_GPU)}
PRECISION: Final = ("precision", "fp16_accumulation", "reduced")
"""Parts of the names of switches that say in what a sum is kept; the others say in what order it is taken."""


def setting(operators: Iterable[str], *, gpu: bool) -> dict[str, Any]:
    """What `operators` read in this process: {"environment": {name: value or None}, "torch": {name: value}}."""
    spaces = {name.partition(".")[0] for name in operators}
    names = [*(CUDA if gpu else CPU)]
    names += TRITON if "triton" in spaces else ()
    names += VLLM if spaces - {"aten", "bitgate"} else ()
    switches = (*ANYWHERE, *ON_A_GPU) if gpu else ANYWHERE
    return {
        "environment": {name: os.environ.get(name) for name in names},
        "torch": {switch.name: value for switch in switches if (value := _now(switch)) is not None},
    }


def _now(switch: Switch) -> Any:
    """None where this torch does not have it, or does not tell since it was set in torch's older way."""
    try:
        return switch.get()
    except (AttributeError, RuntimeError):
        return None


def environment_of(notes: Mapping[str, Any]) -> dict[str, str | None]:
    """The variables that a program was recorded under; None: unset."""
    found: dict[str, str | None] = (notes.get("setting") or {}).get("environment", {})
    return found


def environment_apart(notes: Mapping[str, Any]) -> str | None:
    """In what the environment of this process is another than the one that a program was recorded under, if so."""
    for name, value in environment_of(notes).items():
        if os.environ.get(name) != value:
            there, here = (text if text is not None else "unset" for text in (value, os.environ.get(name)))
            return f"recorded with {name} {there}, and run by a process that has it {here}"
    return None


def follow_switches(notes: Mapping[str, Any]) -> None:
    """Sets torch's switches as they were when the program was recorded."""
    for name, value in (notes.get("setting") or {}).get("torch", {}).items():
        switch = SWITCHES.get(name)
        if switch is not None and _now(switch) not in (value, None):
            switch.put(value)


def unlike(a: Mapping[str, Any], b: Mapping[str, Any], kind: str) -> dict[str, tuple[Any, Any]]:
    """What of `kind` ("environment", "torch") both programs read, and found with other values: name -> the two."""
    ours, theirs = ((notes.get("setting") or {}).get(kind, {}) for notes in (a, b))
    return {name: (value, theirs[name]) for name, value in ours.items() if name in theirs and theirs[name] != value}


def statements(notes: Mapping[str, Any]) -> list[str]:
    """The lines of a script that set the switches."""
    given = (notes.get("setting") or {}).get("torch", {})
    return [SWITCHES[name].text.format(value) for name, value in given.items() if name in SWITCHES]
