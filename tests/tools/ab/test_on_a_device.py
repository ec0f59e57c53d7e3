"""What two engines on one GPU need: what is the one's is not taken for a stranger's by the other."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from bitgate.store.records import SideRecord
from bitgate.tools.ab.conduct import Call, run_together
from bitgate.tools.ab.operators import breakdown_summary
from bitgate.tools.ab.ran import talks
from bitgate.tools.engines.worker.load.machine import RUN, strangers
from bitgate.tools.engines.worker.load.operators import class_of, timed
from bitgate.tools.engines.worker.load.turns import rest
from bitgate.tools.runs.processes import MARK_RUN


def test_the_runs_own_engines_on_the_device_are_no_strangers() -> None:
    assert RUN == MARK_RUN
    waits = [sys.executable, "-c", "print('up', flush=True); input()"]
    env = {**os.environ, RUN: "run_1"}
    with subprocess.Popen(waits, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as engine:
        assert engine.stdout is not None and engine.stdout.readline() == b"up\n"
        gone = 2**22 + 1
        assert strangers({engine.pid, gone}, "run_1") == [gone]
        assert strangers({engine.pid}, "run_2") == [engine.pid]
        assert strangers({engine.pid}, None) == [engine.pid]
        engine.kill()


def event(key: str, device: str, microseconds: float) -> Any:
    times = {"self_device_time_total": microseconds, "self_cpu_time_total": 7.0}
    return SimpleNamespace(key=key, device_type=f"DeviceType.{device}", count=2, **times)


def test_on_a_gpu_a_kernel_counts_once_and_not_again_for_the_operator_that_started_it() -> None:
    events = [event("aten::mm", "CPU", 90.0), event("nvjet_sm90_tst_64x8", "CUDA", 90.0), event("idle", "CUDA", 0.0)]
    assert timed(events, cuda=True) == [("nvjet_sm90_tst_64x8", 9e-5, 2)]
    assert timed(events, cuda=False) == [(name, 7e-6, 2) for name in ("aten::mm", "nvjet_sm90_tst_64x8", "idle")]
    assert class_of("nvjet_sm90_tst_64x8") == "matmul"


def test_a_breakdown_says_more_or_less() -> None:
    figures = {
        "difference": {"of": "eager", "minus": "plain", "turn_ms": -16.77},
        "by_class": [{"class": "matmul", "difference_ms": 5.218}],
    }
    assert breakdown_summary(figures) == (  # type: ignore[arg-type]
        "eager takes 16.77 ms less a turn than plain under the profiler; the greatest difference is matmul: "
        "5.218 ms more."
    )


@pytest.mark.parametrize(
    ("ranks", "parallel", "talking"),
    [(1, {"tensor": 1, "pipeline": 1, "data": 1, "expert": False}, False), (1, {"tensor": 2}, True), (2, {}, True)],
)
def test_one_process_alone_has_no_transport_whatever_its_mode_sets(
    ranks: int, parallel: dict[str, Any], talking: bool
) -> None:
    """vLLM's batch-invariant mode sets eleven variables of NCCL, on one GPU too."""
    record = SideRecord(name="rollout", engine="vllm", digest="d" * 64, stable={"parallel": parallel})
    assert talks(ranks, record) is talking


def test_a_turn_is_over_when_its_threads_sleep() -> None:
    """OpenMP's threads spin on after their work, beside the other side's turn."""
    until = time.monotonic() + 0.3

    def spin() -> None:
        while time.monotonic() < until:
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    rest(limit_s=20)
    assert time.monotonic() >= until
    thread.join()


class Worker:
    """A side that comes up when it is told to, and notes when it was started."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self._name, self._seen = name, seen
        self.ready = anyio.Event()

    async def run(self) -> None:
        self._seen.append(f"{self._name} starts")
        await anyio.lowlevel.checkpoint()
        self._seen.append(f"{self._name} is up")
        self.ready.set()

    async def up(self) -> None:
        await self.ready.wait()


def test_engines_start_one_after_the_other() -> None:
    """The second one would take the growth of the first for its own, and find no room for its cache."""
    seen: list[str] = []

    async def both() -> None:
        calls: list[Call] = []
        await run_together([Worker("a", seen), Worker("b", seen)], {}, calls, 0.0)  # type: ignore[list-item]

    anyio.run(both)
    assert seen == ["a starts", "a is up", "b starts", "b is up"]
