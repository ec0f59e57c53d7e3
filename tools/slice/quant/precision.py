"""The precision of a module, from what the quantisation stores beside its weight; by name first, dtype where known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PLAIN: Final = {
    "F32": "fp32",
    "BF16": "bf16",
    "F16": "fp16",
    "F64": "fp64",
    "I64": "int64",
    "I32": "int32",
    "U8": "uint8",
    "I8": "int8",
    "BOOL": "bool",
    "F8_E4M3": "fp8",
    "F8_E5M2": "fp8_e5m2",
    "F8_E8M0": "fp8_e8m0",
    "F4": "fp4",
}
NO_KERNEL_ON_CPU: Final = ("fp8", "nvfp4", "mxfp4", "mxfp8", "fp4", "awq", "gptq")
"""Prefixes of precisions for which CPUs have no kernel, so that window equivalence cannot be run."""


def precision(method: str, leaves: Mapping[str, str]) -> str:
    """`leaves` maps the module's tensor leaves to safetensors dtypes.

    Names follow the formats: block scales `weight_scale_inv` (DeepSeek), `weight_packed` (compressed-tensors),
    `weight_scale_2` (ModelOpt NVFP4), `qweight` (AWQ, GPTQ), `_blocks` (gpt-oss MXFP4), `scale` (DeepSeek-V4 native).
    """
    names = set(leaves)
    if "qweight" in names:
        return method if method in ("awq", "gptq") else f"{method}_int"
    if "blocks" in names:
        return "mxfp4"
    if "weight_packed" in names:
        return "nvfp4" if "weight_global_scale" in names else f"packed_{PLAIN.get(leaves['weight_packed'], 'int')}"
    if {"weight_scale_2", "weight_global_scale"} & names and leaves.get("weight") == "U8":
        return "nvfp4"
    stored = PLAIN.get(leaves.get("weight", ""), str(leaves.get("weight", "scale only")).lower())
    return _scaled(stored, names, leaves)


def _scaled(stored: str, names: set[str], leaves: Mapping[str, str]) -> str:
    if "weight_scale_inv" in names or "scale_inv" in names:
        return f"{stored}_block"
    if "scale" in names and stored in ("fp8", "int8", "uint8", "fp4"):
        return "mxfp4" if stored in ("int8", "uint8", "fp4") else f"{stored}_block"
    if "weight_scale" in names and stored != "bf16":
        return f"mx{stored}" if leaves.get("weight_scale") in ("U8", "F8_E8M0") else f"{stored}_scaled"
    return stored


def cpu_can_compute(precisions: set[str]) -> bool:
    return not any(item.startswith(NO_KERNEL_ON_CPU) or item.startswith("packed_") for item in precisions)
