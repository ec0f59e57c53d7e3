"""What ab_benchmark's watching costs the load it measures, on real vLLM on this CPU.

    python tests/bench/bench_ab.py [--blocks 6] [--floor]

On the load path: every turn of the load driver (worker/load) with clocks around each call into vLLM. What of a turn's
time is in none of them is ours, and so is what the noting of tokens adds inside one; the clocks' own time counts as
ours too. Beside it: the shares of a core that bitgate's threads in the other side's process take while it waits for its
turn, and, in a real A/A run, that bitgate's supervisor and the guards of the two engines take. An engine's own threads
wake while it waits too (Gloo's, which vLLM starts for each of its groups, look a hundred times a second); that is
printed, and no limit is set to it. `--floor` adds a real run against the baseline as that A/A run saw it.

In the same engine the same requests are also served by vLLM's own `LLM.generate`, in random ABBA or BAAB blocks with
the driver: the ratio of processor times, with its interval, shows whether watching slows vLLM itself down.

Ends with 1 when one of these is not under its limit.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from ab_runs import as_frozen, ran, vllm_project

from bitgate.tools.ab.statistics import (
    Floats,
    block_log_ratios,
    draw_schedule,
    interval,
    minimum_detectable,
    pair_log_ratios,
    spread_of,
)

WORKER = Path(__file__).parents[2] / "tools" / "engines" / "worker"
LIMITS = {"on the load path": 0.01, "the side that waits": 0.005, "the supervisor": 0.01, "the guards": 0.005}
"""Of a turn's time, and of a core beside it."""

SCRIPT = """
import json, os, random, sys, threading, time
stage, model, schedule, out = sys.argv[1:5]
sys.path.append(stage)
from bitgate_worker.engines.vllm import VllmEngine
from bitgate_worker.lease import Lease, LeaseThread
from bitgate_worker.load.turns import Work, _next, rest
from vllm import SamplingParams

engine = VllmEngine(model, {"enforce_eager": True, "max_model_len": 512})
rng = random.Random(1)
prompts = [[rng.randrange(3, 1000) for _ in range(rng.randrange(10, 100))] for _ in range(32)]
work = Work(list(enumerate(prompts)), 64, {}, len(prompts))
params = SamplingParams(temperature=0.0, max_tokens=64, logprobs=0, detokenize=False, ignore_eos=True)
llm, clock = engine._llm.llm_engine, time.perf_counter
spent = {"called": 0.0, "noting": 0.0, "core": 0.0}

def timed(name, function):
    def call(*args, **kwargs):
        began = clock()
        try:
            return function(*args, **kwargs)
        finally:
            spent[name] += clock() - began
    return call

class Core:
    # Stands for the engine's core: times the driver's get_output, and the core's own inside it.
    def __init__(self, core):
        self.__dict__.update(core=core, get_output=timed("core", core.get_output))
    def __getattr__(self, name):
        return getattr(self.core, name)
    def __setattr__(self, name, value):
        self.__dict__[name] = timed("noting", value) if name == "get_output" else value
    def __delattr__(self, name):
        self.__dict__["get_output"] = timed("core", self.core.get_output)

def driver():
    seconds, served = engine.serve(work)
    assert all(len(request.token_times) == 64 for request in served)
    return seconds

def plain():
    engine._reset_cache()
    engine._llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)

for _ in range(2):
    driver(), plain()
turns = []
for arm in schedule:
    wall, cpu = time.perf_counter(), time.process_time()
    (driver if arm == "a" else plain)()
    turns.append([time.perf_counter() - wall, time.process_time() - cpu])

shares = []
core, step, add = llm.engine_core, llm.step, llm.add_request
llm.engine_core, llm.step, llm.add_request = Core(core), timed("called", step), timed("called", add)
for _ in range(len(schedule) // 2):
    spent.update(dict.fromkeys(spent, 0.0))
    seconds = driver()
    assert spent["noting"] > spent["core"] > 0
    shares.append((seconds - spent["called"] + spent["noting"] - spent["core"]) / seconds)

waits = os.path.join(os.path.dirname(out), "turns")
os.makedirs(waits)
def call(number):
    with open(os.path.join(waits, f"{number:05d}.json"), "w") as file:
        file.write("{}")
def used():
    # Processor seconds of every thread, which the scheduler counts in nanoseconds.
    found = {}
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/schedstat") as file:
            found[int(thread)] = int(file.read().split()[0]) / 1e9
    return found
lease = LeaseThread(Lease(out, 1e9))
lease.start()
ours = {threading.main_thread().native_id, lease.native_id}
rest()
before, wall, timers = used(), time.perf_counter(), set()
for number in range(5):
    timer = threading.Timer(1.0, call, [number])  # as long as a turn of the other side takes by default
    timer.start()
    timers.add(timer.native_id)
    _next(waits, number)
after, wall = used(), time.perf_counter() - wall
spent_by = {thread: (seconds - before.get(thread, 0.0)) / wall for thread, seconds in after.items()}
waiting = sum(share for thread, share in spent_by.items() if thread in ours)
idle = sum(share for thread, share in spent_by.items() if thread not in ours | timers)
with open(out, "w", encoding="utf-8") as file:
    json.dump({"turns": turns, "shares": shares, "waiting": waiting, "idle": idle}, file)
os._exit(0)
"""


def measured(python: str, blocks: int) -> tuple[tuple[str, ...], dict[str, Any]]:
    schedule = draw_schedule(blocks, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        shutil.copytree(WORKER, root / "stage" / "bitgate_worker", ignore=shutil.ignore_patterns("__pycache__"))
        subprocess.run([python, str(WORKER / "tiny_model.py"), str(root / "model")], check=True, capture_output=True)
        (root / "run.py").write_text(SCRIPT, encoding="utf-8")
        command = [python, str(root / "run.py"), str(root / "stage"), str(root / "model"), "".join(schedule)]
        env = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"}
        subprocess.run([*command, str(root / "out.json")], check=True, env=env, capture_output=True)
        return schedule, json.loads((root / "out.json").read_text(encoding="utf-8"))


def measured_run(python: str, blocks: int, *, floor: bool) -> dict[str, float]:
    """Shares of a core by process of a real A/A run; says its ratio, and with `floor` that of a run after a freeze."""
    with tempfile.TemporaryDirectory() as folder:
        project = vllm_project(Path(folder), python)
        evidence, costs = ran(project, side="baseline", other="baseline", blocks=blocks)
        print(f"aa: {evidence.verdict}: {evidence.summary}")
        if floor:
            frozen, _ = ran(project, as_frozen(evidence), side="rollout", blocks=blocks, null_blocks=3)
            print(f"floor: {frozen.verdict}: {frozen.summary}")
            print(f"  noticed: {', '.join(sorted(reason.code for reason in frozen.reasons)) or 'nothing'}")
        return costs.shares()


def said(name: str, blocks: Floats) -> str:
    seen = interval(blocks)
    low, middle, high = (100 * (ratio - 1) for ratio in (seen.ratio_low, seen.ratio, seen.ratio_high))
    least = 100 * minimum_detectable(spread_of(blocks), len(blocks))
    return f"{name}: driver / generate {middle:+.2f} % ({low:+.2f} to {high:+.2f}; detectable {least:.2f} %)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--floor", action="store_true", help="also the ratio of a real run against a frozen baseline")
    options = parser.parse_args()
    python = os.environ.get("BITGATE_ENGINE_PYTHON")
    if not python:
        sys.exit("set BITGATE_ENGINE_PYTHON to the interpreter that has vLLM")
    schedule, found = measured(python, options.blocks)
    shares, waiting, seconds = np.array(found["shares"]), float(found["waiting"]), np.array(found["turns"])
    print(f"{options.blocks} blocks, load {os.getloadavg()[0]:.1f}")
    for column, name in ((1, "processor time"), (0, "wall time")):
        print(said(name, block_log_ratios(pair_log_ratios(schedule, seconds[:, column]))))
    beside = measured_run(python, options.blocks, floor=options.floor)
    found_shares = {"on the load path": float(np.median(shares)), "the side that waits": waiting, **beside}
    for name, share in found_shares.items():
        of = "a turn" if name == "on the load path" else "a core"
        print(f"{name}: {share:.2%} of {of}; under {LIMITS[name]:.1%}")
    print(f"besides, vLLM's own threads in the side that waits: {found['idle']:.2%} of a core, on both sides alike")
    sys.exit(any(share >= LIMITS[name] for name, share in found_shares.items()))


if __name__ == "__main__":
    main()
