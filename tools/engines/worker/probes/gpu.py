"""Programs that were recorded on a GPU run there again; what they made comes back to the CPU, where it is compared."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

from torch import Tensor

SWITCH = "vllm.model_executor.layers.batch_invariant"
"""vLLM's module that replaces operators of torch by batch-invariant ones, for the whole process."""
KERNELS = "vllm._custom_ops"
LIBRARIES = {"_C": KERNELS, "_moe_C": KERNELS, "vllm": KERNELS, "_vllm_fa": "vllm.vllm_flash_attn"}
"""Beginning of an operator's namespace -> the module that registers it."""


def batch_invariant_mode() -> bool:
    """Whether vLLM's mode is on in this process."""
    return bool(getattr(sys.modules.get(SWITCH), "_batch_invariant_MODE", False))


def follow_mode(notes: Mapping[str, Any]) -> None:
    """The mode that a program was recorded in. Raises: RuntimeError where it is on and the program was made without."""
    wanted = bool(notes.get("batch_invariant"))
    if wanted and not batch_invariant_mode():
        importlib.import_module(SWITCH).enable_batch_invariant_mode()
    if notes.get("gpu") and not wanted and batch_invariant_mode():
        raise RuntimeError("recorded without vLLM's batch-invariant mode, which another program needs in this process")


def registering(namespace: str) -> list[str]:
    """The modules whose import registers the operators of a namespace."""
    return [module for beginning, module in LIBRARIES.items() if namespace.startswith(beginning)]


def on_device(notes: Mapping[str, Any], name: str, value: Tensor) -> Tensor:
    return value.cuda() if name in notes.get("gpu", ()) else value


def home(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else value
