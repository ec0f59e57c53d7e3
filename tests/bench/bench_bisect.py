"""How often the answer of bisect_layer is right.

    python tests/bench/bench_bisect.py [--faults all]

Prints the matrix of faults: exact operator, class, repro, unknown, and silent wrong answers; exits with 1 when a limit
is missed. The interpreter with torch is BITGATE_ENGINE_PYTHON. What watching costs: bench_bisect_cost.py.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from figures import Figures

ROOT = Path(__file__).resolve().parents[2]
LAB = ROOT / "tests/tools/bisect/lab.py"
TINY = ROOT / "tools/engines/worker/tiny_model.py"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", default="all")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = namespace(Path(folder))
        model = Path(folder) / "tiny"
        run(home, str(TINY), str(model), "--family", "qwen3", "--layers", "2")
        started = time.monotonic()
        lines = run(home, str(LAB), str(model), str(Path(folder) / "lab"), args.faults).splitlines()
        report([json.loads(line) for line in lines if line.startswith("{")], time.monotonic() - started)
    return 0


def namespace(folder: Path) -> Path:
    (folder / "home" / "bitgate").mkdir(parents=True)
    for room in ("tools", "store"):
        (folder / "home" / "bitgate" / room).symlink_to(ROOT / room)
    return folder / "home"


def run(home: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(home)}
    python = os.environ.get("BITGATE_ENGINE_PYTHON", sys.executable)
    done = subprocess.run([python, *command], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return done.stdout.strip()


def report(found: list[dict[str, Any]], seconds: float) -> None:
    total = len(found)
    shown = [f for f in found if f["class"] is not None]
    exact = [f for f in shown if f["found"] == f["point"]]
    right = [f for f in exact if f["class"] == f["label"]]
    unknown = [f for f in shown if f["class"] == "unknown"]
    wrong = [f for f in shown if f not in unknown and (f["found"], f["class"]) != (f["point"], f["label"])]
    print(f"faults {total}, of which changed bits {len(shown)} ({seconds / max(total, 1):.1f} s each)")
    print(f"exact operator {len(exact)}/{len(shown)}  class right {len(right)}/{len(shown)}")
    print(f"repro reproduces {sum(bool(f.get('reproduces')) for f in shown)}/{len(shown)}  unknown {len(unknown)}")
    for entry in wrong:
        print(f"  {entry['label']} at {entry['point']}: said {entry['class']} at {entry['found']}")
    figures = Figures()
    figures.at_most("silent wrong answers", len(wrong), 0)
    figures.at_most("unknown", 100 * len(unknown) / max(len(shown), 1), 5, "%")
    figures.end()


if __name__ == "__main__":
    sys.exit(main())
