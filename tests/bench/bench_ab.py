"""What ab_benchmark's watching costs the load it measures, on real vLLM on this CPU.

    python tests/bench/bench_ab.py [--blocks 12]

In one engine: the same requests served through the load driver (worker/load) and by vLLM's own `LLM.generate`, in
random ABBA or BAAB blocks. The ratio of processor times, with its interval, is the overhead: on a shared machine
processor time is what the driver adds, wall time is what the neighbours add. Both are printed.
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

import numpy as np

from bitgate.tools.ab.statistics import (
    block_log_ratios,
    draw_schedule,
    interval,
    minimum_detectable,
    pair_log_ratios,
    spread_of,
)

WORKER = Path(__file__).parents[2] / "tools" / "engines" / "worker"
GOAL = 0.01

SCRIPT = """
import json, os, random, sys, time
stage, model, schedule, out = sys.argv[1:5]
sys.path.append(stage)
from bitgate_worker.engines.vllm import VllmEngine
from bitgate_worker.load.turns import Work
from vllm import SamplingParams

engine = VllmEngine(model, {"enforce_eager": True, "max_model_len": 512})
rng = random.Random(1)
prompts = [[rng.randrange(3, 1000) for _ in range(rng.randrange(10, 100))] for _ in range(32)]
work = Work(list(enumerate(prompts)), 64, {}, len(prompts))
params = SamplingParams(temperature=0.0, max_tokens=64, logprobs=0, detokenize=False, ignore_eos=True)

def driver():
    seconds, served = engine.serve(work)
    assert all(len(request.token_times) == 64 for request in served)

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
with open(out, "w", encoding="utf-8") as file:
    json.dump(turns, file)
os._exit(0)
"""


def measured(python: str, blocks: int) -> tuple[tuple[str, ...], np.ndarray]:
    schedule = draw_schedule(blocks, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        shutil.copytree(WORKER, root / "stage" / "bitgate_worker", ignore=shutil.ignore_patterns("__pycache__"))
        subprocess.run([python, str(WORKER / "tiny_model.py"), str(root / "model")], check=True, capture_output=True)
        (root / "run.py").write_text(SCRIPT, encoding="utf-8")
        command = [python, str(root / "run.py"), str(root / "stage"), str(root / "model"), "".join(schedule)]
        env = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"}
        subprocess.run([*command, str(root / "out.json")], check=True, env=env, capture_output=True)
        return schedule, np.array(json.loads((root / "out.json").read_text(encoding="utf-8")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=12)
    options = parser.parse_args()
    python = os.environ.get("BITGATE_ENGINE_PYTHON")
    if not python:
        sys.exit("set BITGATE_ENGINE_PYTHON to the interpreter that has vLLM")
    schedule, seconds = measured(python, options.blocks)
    print(f"{options.blocks} blocks, load {os.getloadavg()[0]:.1f}")
    for column, name in ((1, "processor time"), (0, "wall time")):
        blocks = block_log_ratios(pair_log_ratios(schedule, seconds[:, column]))
        found = interval(blocks)
        low, middle, high = (100 * (ratio - 1) for ratio in (found.ratio_low, found.ratio, found.ratio_high))
        least = 100 * minimum_detectable(spread_of(blocks), len(blocks))
        print(f"{name}: driver / generate {middle:+.2f} % ({low:+.2f} to {high:+.2f}; detectable {least:.2f} %)")
    print(f"goal: under {GOAL:.0%}")


if __name__ == "__main__":
    main()
