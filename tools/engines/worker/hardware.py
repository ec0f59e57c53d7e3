"""What this process runs on: library versions and hardware, as every engine's `describe` reports them."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterable
from typing import Any

CPU_FLAGS = (
    "avx2",
    "avx512f",
    "avx512_bf16",
    "avx512_fp16",
    "avx512_vnni",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "sve",
    "bf16",
)
"""Instruction sets that kernels are chosen by."""


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Installed versions of the packages that are installed, and of Python."""
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def hardware(kind: str) -> dict[str, Any]:
    """The processor's model and instruction sets, and the GPUs where there are any."""
    found: dict[str, Any] = {"machine": platform.machine(), **_cpu()}
    if kind == "cuda":
        import torch

        found["gpu"] = torch.cuda.get_device_name()
        found["capability"] = list(torch.cuda.get_device_capability())
        found["cuda"] = torch.version.cuda
    return found


def _cpu() -> dict[str, Any]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            fields = dict(line.split(":", 1) for line in file.read().split("\n\n")[0].splitlines() if ":" in line)
    except OSError:
        return {"cpu": platform.processor() or "unknown"}
    clean = {key.strip(): value.strip() for key, value in fields.items()}
    flags = set(clean.get("flags", clean.get("Features", "")).split())
    return {
        "cpu": clean.get("model name", platform.processor() or "unknown"),
        "family": [clean.get("cpu family", ""), clean.get("model", ""), clean.get("stepping", "")],
        "flags": [flag for flag in CPU_FLAGS if flag in flags],
    }
