"""GPU, driver, CUDA, NCCL and clocks as this process sees them; a CPU's governor. Whatever is not there is left out."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

TRANSPORT = (
    "NCCL_", "NVSHMEM_", "UCX_", "DEEPEP_", "GLOO_", "MNNVL", "RCCL_", "FI_", "VLLM_NCCL", "VLLM_ALL2ALL",
    "VLLM_DISABLE_PYNCCL",
)  # fmt: skip
_QUIET = ("_DEBUG", "_DEBUG_FILE", "_DEBUG_SUBSYS", "_ASYNC_ERROR_HANDLING", "_LOG_LEVEL")
THROTTLING = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""NVML's clocks event reasons that make a measurement worthless (nvml.h); a power cap is normal, and none of them."""


def device() -> dict[str, Any]:
    """`stable`: models and versions. `volatile`: clocks, temperature, power, other processes."""
    torch = sys.modules.get("torch")
    stable: dict[str, Any] = {"cpu_governor": _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")}
    volatile: dict[str, Any] = {}
    if torch is not None:
        stable["torch_cuda"] = getattr(getattr(torch, "version", None), "cuda", None)
    nvml = open_nvml()
    if nvml is not None:
        stable |= _nvml_stable(nvml)
        volatile["gpus"] = gpus(nvml)
    if torch is not None and stable["torch_cuda"] and torch.cuda.is_available():
        stable["nccl"] = _quietly(lambda: ".".join(map(str, torch.cuda.nccl.version())))
        stable["cudnn"] = _quietly(torch.backends.cudnn.version)
    return {"stable": {k: v for k, v in stable.items() if v is not None}, "volatile": volatile}


def open_nvml() -> Any:
    """NVML through whichever binding is installed, or None."""
    for name in ("pynvml", "vllm.third_party.pynvml"):
        if name == "pynvml" or "vllm" in sys.modules:
            try:
                nvml = importlib.import_module(name)
                nvml.nvmlInit()
                return nvml
            except Exception:  # noqa: BLE001 - bindings raise their own errors where there is no driver
                continue
    return None


def _nvml_stable(nvml: Any) -> dict[str, Any]:
    return {
        "driver": _quietly(lambda: _decoded(nvml.nvmlSystemGetDriverVersion())),
        "gpus": [_quietly(partial(_name_of, nvml, handle)) for handle in _handles(nvml)],
    }


def _name_of(nvml: Any, handle: Any) -> str:
    return _decoded(nvml.nvmlDeviceGetName(handle))


def gpus(nvml: Any) -> list[dict[str, Any]]:
    """Every visible GPU now: SM clock in MHz, temperature, throttling in words, processes that are not ours."""
    return [_gpu(nvml, number, handle) for number, handle in enumerate(_handles(nvml))]


def _gpu(nvml: Any, number: int, handle: Any) -> dict[str, Any]:
    reasons = _quietly(lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))) or 0
    running = _quietly(lambda: [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]) or []
    return {
        "gpu": number,
        "sm_mhz": _quietly(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "celsius": _quietly(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        "throttled": [words for bit, words in THROTTLING.items() if reasons & bit],
        "processes": sorted(pid for pid in running if pid != os.getpid()),
    }


def _handles(nvml: Any) -> list[Any]:
    """The GPUs that this process may use; CUDA_VISIBLE_DEVICES counts as CUDA counts only without UUIDs."""
    count = _quietly(nvml.nvmlDeviceGetCount) or 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    chosen = [int(word) for word in visible.split(",") if word.strip().isdigit()] if visible else list(range(count))
    return [nvml.nvmlDeviceGetHandleByIndex(index) for index in chosen if index < count]


def transport(environment: dict[str, str]) -> dict[str, str]:
    """Variables that choose how ranks talk, without those that only choose what is printed."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if any(name.startswith(prefix) or (prefix == "MNNVL" and prefix in name) for prefix in TRANSPORT)
        and not name.endswith(_QUIET)
    }


def _decoded(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _quietly(ask: Callable[[], Any]) -> Any:
    """What a driver answers, or None: every call may be refused on some card or in some container."""
    try:
        return ask()
    except Exception:  # noqa: BLE001 - the bindings' own errors
        return None


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return None
