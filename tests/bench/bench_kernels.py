"""The trainer that calls vLLM's kernels against transformers, on the same model and tokens, as ratios in one run.

    python tests/bench/bench_kernels.py [--rounds 5] [--hidden 512] [--sequences 8] [--length 128]

Prints forward, and forward + backward, of vllm_kernels (in tiles, without tiles, with recomputation) over transformers
(bf16, sdpa), measured in turns in one process; and the peak memory of each above what loading took, one process each.
These are costs to know, without limits of their own; it fails when one of them cannot be computed.
The interpreter with vLLM is BITGATE_ENGINE_PYTHON.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORKER = Path(__file__).resolve().parents[2] / "tools/engines/worker"
KINDS = ("transformers", "vllm_kernels", "vllm_kernels, no tiles", "vllm_kernels, recompute")
OPTIONS = {"enforce_eager": True, "dtype": "bfloat16", "enable_prefix_caching": False}

Pass = Callable[[bool], None]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("rounds", 5), ("layers", 4), ("hidden", 512), ("sequences", 8), ("length", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS, metavar=("WHAT", "MODEL", "OUT"))
    args = parser.parse_args()
    if args.measure:
        return measure(args)
    python = os.environ.get("BITGATE_ENGINE_PYTHON")
    if not python:
        print(
            "BITGATE_ENGINE_PYTHON names no engine interpreter; run `make engine`, or use `make bench`", file=sys.stderr
        )
        return 2
    with tempfile.TemporaryDirectory() as folder:
        report(python, args, Path(folder))
    return 0


def report(python: str, args: argparse.Namespace, folder: Path) -> None:
    model = folder / "model"
    sizes = {"layers": args.layers, "hidden": args.hidden, "intermediate": 3 * args.hidden, "vocab": 4096}
    sizes |= {"heads": args.hidden // 64, "kv-heads": max(args.hidden // 128, 1)}
    given = [text for name, value in sizes.items() for text in (f"--{name}", str(value))]
    subprocess.run([python, str(WORKER / "tiny_model.py"), str(model), *given], check=True, capture_output=True)
    times = child(python, args, "time", model, folder)
    base = times["transformers"]
    tokens = args.sequences * args.length
    print(f"{args.layers} layers, hidden {args.hidden}, {args.sequences} x {args.length} = {tokens} tokens, bf16")
    print(f"{'':28}{'forward':>18}{'forward+backward':>24}{'peak memory above load':>26}")
    memories = {kind: child(python, args, kind, model, folder)["bytes"] for kind in KINDS}
    for kind in KINDS:
        cells = [f"{times[kind][p] / base[p]:.2f} x ({times[kind][p] * 1e3:.0f} ms)" for p in ("forward", "both")]
        ratio = memories[kind] / memories["transformers"]
        print(f"{kind:28}{cells[0]:>18}{cells[1]:>24}{f'{ratio:.2f} x ({memories[kind] / 2**20:.0f} MiB)':>26}")


def child(python: str, args: argparse.Namespace, what: str, model: Path, folder: Path) -> dict[str, Any]:
    out = folder / "out.json"
    sizes = [text for name in ("rounds", "sequences", "length") for text in (f"--{name}", str(getattr(args, name)))]
    command = [python, __file__, *sizes, "--measure", what, str(model), str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found


# Below: in the engine's interpreter.


def measure(args: argparse.Namespace) -> int:
    what, model, out = args.measure
    package = types.ModuleType("bitgate_worker")
    package.__path__ = [str(WORKER)]
    sys.modules["bitgate_worker"] = package
    importlib.import_module("bitgate_worker.engines.vllm_environment").prepare_environment()
    if what == "time":
        found = timed({kind: build(kind, model, args) for kind in KINDS}, args.rounds)
    else:
        found = {"bytes": peak_above_load(build(what, model, args))}
    Path(out).write_text(json.dumps(found, allow_nan=False), encoding="utf-8")
    return 0


def build(kind: str, model: str, args: argparse.Namespace) -> Pass:
    import torch

    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(3, 4096, (args.sequences, args.length), generator=generator)
    logprobs, zero_grad = transformers_pass(model) if kind == "transformers" else kernels_pass(kind, model)

    def run(backward: bool) -> None:
        with torch.set_grad_enabled(backward):
            loss = logprobs(tokens).sum()
        if backward:
            zero_grad()
            loss.backward()

    return run


def transformers_pass(path: str) -> tuple[Any, Any]:
    import torch
    import transformers

    net = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16, attn_implementation="sdpa")
    net.train()

    def logprobs(tokens: Any) -> Any:
        logits = net(tokens).logits[:, :-1]
        return torch.log_softmax(logits.float(), -1).gather(-1, tokens[:, 1:, None])

    return logprobs, net.zero_grad


def kernels_pass(kind: str, path: str) -> tuple[Any, Any]:
    stack, table, model, checkpoint = (
        importlib.import_module(f"bitgate_worker.kernels.{name}") for name in ("stack", "table", "model", "checkpoint")
    )
    built = stack.build_stack(path, batch_invariant="no tiles" not in kind, engine_options=OPTIONS)
    net = model.CausalLM(table.Operators(built), recompute="recompute" in kind)
    checkpoint.load(net, path)
    net.train()
    return (lambda tokens: net(list(tokens))), net.zero_grad


def timed(passes: dict[str, Pass], rounds: int) -> dict[str, dict[str, float]]:
    """Median seconds of each, taken in turns so that a slow minute of the machine meets all of them."""
    seconds: dict[str, dict[str, list[float]]] = {kind: {"forward": [], "both": []} for kind in passes}
    for number in range(rounds + 1):
        for kind, run in passes.items():
            for name, backward in (("forward", False), ("both", True)):
                started = time.perf_counter()
                run(backward)
                if number:
                    seconds[kind][name].append(time.perf_counter() - started)
    return {
        kind: {name: statistics.median(values) for name, values in found.items()} for kind, found in seconds.items()
    }


def peak_above_load(run: Pass) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run(True)
    return max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, 1) * 1024


if __name__ == "__main__":
    sys.exit(main())
