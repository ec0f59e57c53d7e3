"""What watching costs, and how often the answer is right, in one run.

    python tests/bench/bench_bisect.py [--rounds 5] [--hidden 1024] [--layers 4] [--faults all]

Prints the forward with every semantic point hashed over the plain forward (transformers, bf16, measured in turns), the
bytes of hashes over a full dump of the same points, and the matrix of faults: exact operator, class, repro, unknown,
and silent wrong answers. The interpreter with torch is BITGATE_ENGINE_PYTHON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LAB = ROOT / "tests/tools/bisect/lab.py"
TINY = ROOT / "tools/engines/worker/tiny_model.py"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("rounds", 5), ("layers", 4), ("hidden", 1024), ("tokens", 256)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--faults", default="all")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(args)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        home = namespace(Path(folder))
        print(
            run(
                home,
                __file__,
                "--measure",
                *(f"--{n}={getattr(args, n)}" for n in ("rounds", "layers", "hidden", "tokens")),
            )
        )
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
    print(f"silent wrong answers {len(wrong)}")
    for entry in wrong:
        print(f"  {entry['label']} at {entry['point']}: said {entry['class']} at {entry['found']}")


def measure(args: argparse.Namespace) -> None:
    """In the engine's interpreter."""
    import torch
    import transformers

    from bitgate.tools.engines.worker.job import Job
    from bitgate.tools.engines.worker.probes.observe import observed
    from bitgate.tools.engines.worker.sequences import Sequences
    from bitgate.tools.engines.worker.table import load_engine

    heads = args.hidden // 64
    config = transformers.Qwen3Config(
        vocab_size=4096, hidden_size=args.hidden, intermediate_size=3 * args.hidden, num_hidden_layers=args.layers,
        num_attention_heads=heads, num_key_value_heads=max(heads // 2, 1), head_dim=64,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        transformers.Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
        engine = load_engine(Job(1, "r", "s", "transformers", folder, 0, {}, "", [], "", "", 5.0, 1, None))
        tokens = torch.randint(0, 4096, (4, args.tokens)).tolist()
        sequences = Sequences.of((row[:8], row[8:]) for row in tokens)
        step = {"kind": "prefill", "name": "step", "groups": [[0, 1, 2, 3]], "packing": "engine", "company": []}
        plain, watched = [], []
        for _ in range(args.rounds + 1):
            started = time.monotonic()
            engine.run(step, sequences)
            middle = time.monotonic()
            _, seen = observed("transformers", engine, {**step, "observe": {"target": None}}, sequences, folder)
            plain.append(middle - started)
            watched.append(time.monotonic() - middle)
        ratio = statistics.median(w / p for w, p in zip(watched[1:], plain[1:], strict=True))
        place = Path(folder) / "step"
        written = sum(path.stat().st_size for path in place.iterdir())
        body = json.loads((place / "points.json").read_text(encoding="utf-8"))
        sizes = {"bfloat16": 2, "float32": 4, "int64": 8}
        dump = sum(4 * args.tokens * entry["width"] * sizes.get(entry["dtype"], 4) for entry in body["points"])
    print(
        f"hashing {seen['points']} points over the plain forward: {ratio:.2f} "
        f"(hidden {args.hidden}, {args.layers} layers)"
    )
    print(f"bytes of hashes over a full dump: {100 * written / dump:.2f} % ({written} of {dump})")


if __name__ == "__main__":
    sys.exit(main())
