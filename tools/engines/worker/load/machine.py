"""What the machine did during a turn: clocks, other processes, throttling. Two looks, and their difference."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from glob import glob
from pathlib import Path
from typing import Any

from ..provenance.devices import gpus, open_nvml

_CLOCKS = {
    "monotonic": "CLOCK_MONOTONIC",
    "raw": "CLOCK_MONOTONIC_RAW",
    "boot": "CLOCK_BOOTTIME",
    "wall": "CLOCK_REALTIME",
}
_UNASKED = object()
RUN = "BITGATE_RUN"
"""By this variable every process of a run is known."""


class Machine:
    """Taken at the beginning of a turn."""

    _nvml: Any = _UNASKED

    def __init__(self) -> None:
        if Machine._nvml is _UNASKED:
            Machine._nvml = open_nvml()
        self._gpus = gpus(Machine._nvml) if Machine._nvml is not None else []
        self._throttled, self._busy, self._own = throttle_counters(), busy_seconds(), _own_seconds()
        self._clocks = clocks()

    def since(self) -> dict[str, Any]:
        """`clocks`: seconds by each clock; `foreign`: share of all cores that others used, None where not known."""
        passed = {name: value - self._clocks[name] for name, value in clocks().items() if name in self._clocks}
        busy, own, throttled = busy_seconds(), _own_seconds() - self._own, throttle_counters()
        foreign = None
        if busy is not None and self._busy is not None and passed["monotonic"] > 0:
            used = busy - self._busy - own
            foreign = min(1.0, max(0.0, used / (passed["monotonic"] * (os.cpu_count() or 1))))
        grown = [name for name, count in throttled.items() if count > self._throttled.get(name, 0)]
        later = gpus(Machine._nvml) if Machine._nvml is not None else []
        for before, after in zip(self._gpus, later, strict=False):
            words = sorted({*before["throttled"], *after["throttled"]})
            grown += [f"GPU {after['gpu']}: {word}" for word in words]
            after["processes"] = strangers({*before["processes"], *after["processes"]}, os.environ.get(RUN))
        return {"clocks": passed, "foreign": foreign, "own_cpu_s": own, "throttled": grown, "gpus": later}


def strangers(pids: Iterable[int], run: str | None) -> list[int]:
    """Those that this run did not start: its other side's engine is resident on the device too, and idle."""
    mark = os.fsencode(f"{RUN}={run}")
    return sorted(pid for pid in pids if run is None or mark not in _environment(pid))


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def clocks() -> dict[str, float]:
    return {name: time.clock_gettime(getattr(time, clock)) for name, clock in _CLOCKS.items() if hasattr(time, clock)}


def busy_seconds() -> float | None:
    """Seconds that all cores together were not idle since boot; None without /proc."""
    try:
        fields = Path("/proc/stat").read_text(encoding="ascii", errors="replace").split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    # user nice system idle iowait irq softirq steal; guest time is in user already.
    values = [int(field) for field in fields[:8]]
    ticks: int = os.sysconf("SC_CLK_TCK")
    return (sum(values) - values[3] - values[4]) / ticks


def _own_seconds() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def throttle_counters() -> dict[str, int]:
    """Counters that only grow when this process, or its core, was held back."""
    found = {}
    for path in ("/sys/fs/cgroup/cpu.stat", "/sys/fs/cgroup/cpu/cpu.stat"):
        for line in _lines(path):
            name, _, value = line.partition(" ")
            if name == "nr_throttled":
                found["cgroup CPU quota"] = int(value)
    hot = [int(lines[0]) for path in glob(_CORES) if (lines := _lines(path)) and lines[0].isdigit()]
    return found | ({"CPU temperature": sum(hot)} if hot else {})


_CORES = "/sys/devices/system/cpu/cpu[0-9]*/thermal_throttle/core_throttle_count"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
