"""What bisect_layer costs: time of watching, and bytes written, as ratios in one run.

    python tests/bench/bench_bisect_cost.py [--rounds 7] [--hidden 1024] [--layers 4] [--tokens 512] [--vocab 32000]

A Qwen3 with MLPs of three times its hidden size and heads of 64, two sequences of `--tokens` in one prefill. Prints,
beside their limits: the prefill with every semantic point hashed over the plain one (bf16, in turns, in one process),
for transformers and for vLLM, and beside it decode, which has no limit; files of tensors written by a localisation
that finds nothing; bytes that one with a cause writes (hashes, recorded operators, repro and their copies in the
artifact store) over a dump of all points of the same steps. The localisations are the tool's own runs on vLLM, as it
comes: alone against together in bfloat16 and in float32, and against transformers. Exits with 1 when a limit is missed.
The interpreter with vLLM is BITGATE_ENGINE_PYTHON.
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
TINY = ROOT / "tools/engines/worker/tiny_model.py"
TIME, BYTES = 1.5, 2.0
"""Watched over plain, and per cent of a full dump."""
SEQUENCES, NEW = 2, 4
KV = {"VLLM_CPU_KVCACHE_SPACE": "1"}
SIZES = {"bool": 1, "uint8": 1, "int8": 1, "int16": 2, "bfloat16": 2, "float16": 2, "int32": 4, "float32": 4}
CAUSES: dict[str, dict[str, Any]] = {
    "bfloat16, keys split by the load, batch": {"dtype": "bfloat16", "split": True},
    "float32, batch": {"dtype": "float32"},
    "float32, against transformers": {"dtype": "float32", "check": "rollout_vs_trainer"},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = {"rounds": 7, "layers": 4, "hidden": 1024, "tokens": 512, "vocab": 32_000}
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS, metavar=("ENGINE", "MODEL"))
    args = parser.parse_args()
    if args.measure:
        return measure(args)
    python = os.environ.get("BITGATE_ENGINE_PYTHON")
    if not python:
        print(
            "BITGATE_ENGINE_PYTHON names no engine interpreter; run `make engine`, or use `make bench`", file=sys.stderr
        )
        return 2
    with tempfile.TemporaryDirectory(prefix="bitgate-bench-") as folder:
        report(python, args, Path(folder))
    return 0


def report(python: str, args: argparse.Namespace, folder: Path) -> None:
    from figures import Figures

    model, figures = folder / "model", Figures()
    sizes = {"layers": args.layers, "hidden": args.hidden, "intermediate": 3 * args.hidden, "vocab": args.vocab}
    sizes |= {"heads": args.hidden // 64, "kv-heads": max(args.hidden // 128, 1)}
    given = [text for name, value in sizes.items() for text in (f"--{name}", str(value))]
    subprocess.run([python, str(TINY), str(model), "--family", "qwen3", *given], check=True, capture_output=True)
    print(f"{args.layers} layers, hidden {args.hidden}, {SEQUENCES} x {args.tokens} tokens, vocabulary {args.vocab}")
    for engine in ("transformers", "vllm"):
        watching(figures, python, args, engine, model, folder)
    writing(figures, python, args, model, folder)
    figures.end()


def watching(figures: Any, python: str, args: argparse.Namespace, engine: str, model: Path, folder: Path) -> None:
    home = folder / "home"
    if not home.exists():
        (home / "bitgate").mkdir(parents=True)
        for room in ("tools", "store"):
            (home / "bitgate" / room).symlink_to(ROOT / room)
    sizes = [f"--{name}={getattr(args, name)}" for name in ("rounds", "tokens", "vocab")]
    command = [python, __file__, *sizes, "--measure", engine, str(model)]
    environment = {**os.environ, **KV, "PYTHONPATH": str(home)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{engine}: {done.stderr[-3000:]}")
    for kind, found in json.loads(done.stdout.splitlines()[-1]).items():
        name = f"{engine}, {kind}: {found['points']} points hashed over the plain step"
        if kind == "prefill":
            figures.at_most(name, found["ratio"], TIME, "x", detail=f"plain {found['plain']:.3f} s")
        else:
            print(f"{name}: {found['ratio']:.2f}x (no limit; plain {found['plain']:.3f} s)")


def writing(figures: Any, python: str, args: argparse.Namespace, model: Path, folder: Path) -> None:
    clean = localised(python, args, model, folder / "clean", "bfloat16", invariant=True)
    seen = f"verdict {clean['verdict']}, {clean['tensors']} files"
    good = clean["verdict"] == "pass" and not clean["tensors"]
    figures.holds("tensors written when nothing differs", seen, "pass, 0 files", good)
    for number, (name, given) in enumerate(CAUSES.items()):
        found = localised(python, args, model, folder / str(number), **given)
        share = 100 * found["written"] / found["dump"]
        detail = f"{found['written']} of {found['dump']} bytes, hashes {found['hashes']}"
        good = found["verdict"] == "fail" and found["reproduces"]
        figures.holds(f"cause ({name})", f"{found['verdict']}, {found['point']}", "a repro that reproduces", good)
        figures.at_most(f"written of a full dump ({name})", share, BYTES, "%", detail=detail)


def localised(
    python: str,
    args: argparse.Namespace,
    model: Path,
    root: Path,
    dtype: str,
    *,
    check: str = "batch",
    split: bool = False,
    invariant: bool = False,
) -> dict[str, Any]:
    """One run of the tool, and what it left on the disk."""
    import anyio

    from bitgate.store import Store
    from bitgate.tools.bisect_layer import BisectRequest
    from bitgate.tools.config.project import Project
    from bitgate.tools.runs.control import start_run, wait_run

    root.mkdir()
    (root / "bitgate.toml").write_text(configured(python, args, model, dtype, split, invariant), encoding="utf-8")
    project = Project.load(root)

    async def to_end() -> Any:
        trainer = {"trainer": "trainer"} if check == "rollout_vs_trainer" else {}
        request = BisectRequest.model_validate({"check": check, "side": "rollout", **trainer})
        started = await start_run(project, "bisect_layer", request, actor="bench")
        return await wait_run(project, started.id, 900)

    ended = anyio.run(to_end)
    if ended.evidence_id is None:
        sys.exit(f"bisect_layer ended without evidence: {ended.error}")
    with Store.open(project.ledger) as store:
        evidence = store.get_evidence(ended.evidence_id)
    cause: Any = evidence.figures.get("first_cause") or {}
    repro: Any = evidence.figures.get("repro") or {}
    found = {"verdict": evidence.verdict, "point": cause.get("point"), "reproduces": repro.get("reproduces")}
    return found | left(root / ".bitgate")


def configured(python: str, args: argparse.Namespace, model: Path, dtype: str, split: bool, invariant: bool) -> str:
    environment = KV if split else {**KV, "VLLM_CPU_ATTN_SPLIT_KV": "0"}
    options = {"enforce_eager": True, "max_model_len": 2 * args.tokens, "dtype": dtype, "batch_invariant": invariant}
    tables = [f"{name} = {json.dumps(value)}" for name, value in options.items()]
    variables = [f'{name} = "{value}"' for name, value in environment.items()]
    return (
        f'[model.model]\npath = "{model}"\n[side.rollout]\nengine = "vllm"\npython = "{python}"\n'
        f"env = {{ {', '.join(variables)} }}\noptions = {{ {', '.join(tables)} }}\n"
        f'[side.trainer]\nengine = "transformers"\npython = "{python}"\noptions = {{ dtype = "{dtype}" }}\n'
        f"[workload.long]\nmax_tokens = {NEW}\n[workload.long.generator]\n"
        f"seed = 1\ncount = {SEQUENCES}\nlength = [{args.tokens}, {args.tokens}]\nvocab = {args.vocab}\n"
    )


def left(home: Path) -> dict[str, int]:
    """Bytes of everything watched, recorded, handed over and stored, and of a dump of all points that were hashed."""
    from bitgate.tools.bisect.observation import read_observation

    (run,) = (home / "runs").iterdir()
    watched = [path for path in run.glob("jobs/*/out/*/observed/*/*") if path.is_file()]
    handed = [path for folder in (run / "repro", home / "artifacts") for path in folder.rglob("*") if path.is_file()]
    hashes = [path for path in watched if path.name in ("hashes.safetensors", "points.json")]
    tensors = [path for path in watched + handed if path not in hashes and is_tensors(path)]
    dump = 0
    for folder in {path.parent for path in hashes}:
        for series in read_observation([folder]).points.values():
            dump += len(series.keys) * series.width * SIZES.get(series.dtype, 8)
    return {"written": size_of(*watched, *handed), "hashes": size_of(*hashes), "tensors": len(tensors), "dump": dump}


def is_tensors(path: Path) -> bool:
    """Artifacts have no names of their own: a safetensors file begins with the length of its JSON header."""
    with path.open("rb") as file:
        return file.read(9)[8:] == b"{"


def size_of(*paths: Path) -> int:
    return sum(path.stat().st_size for path in paths)


# Below: in the engine's interpreter.


def measure(args: argparse.Namespace) -> int:
    """Prints the ratios as JSON in the last line."""
    import numpy as np

    from bitgate.tools.engines.worker.job import Job
    from bitgate.tools.engines.worker.sequences import Sequences
    from bitgate.tools.engines.worker.table import load_engine

    name, model = args.measure
    options: dict[str, Any] = {"dtype": "bfloat16"}
    if name == "vllm":
        options |= {"enforce_eager": True, "max_model_len": 2 * args.tokens, "enable_prefix_caching": False}
    engine = load_engine(Job(1, "r", "s", name, model, 0, options, "", [], "", "", 5.0, 1, None))
    rng = np.random.default_rng(3)
    drawn = [rng.integers(0, args.vocab, args.tokens).tolist() for _ in range(SEQUENCES)]
    sequences = Sequences.of((tokens[: -8 * NEW], tokens[-8 * NEW :]) for tokens in drawn)
    kinds = ("prefill", "decode") if name == "vllm" else ("prefill",)
    found = {kind: timed(name, engine, sequences, kind, args.rounds) for kind in kinds}
    engine.close()
    print("\n" + json.dumps(found, allow_nan=False))
    return 0


def timed(name: str, engine: Any, sequences: Any, kind: str, rounds: int) -> dict[str, float]:
    """The median of ratios of neighbours, so that a slow minute of the machine meets both."""
    from bitgate.tools.engines.worker.probes.observe import observed

    step: dict[str, Any] = {"kind": kind, "name": kind, "groups": [list(range(SEQUENCES))]}
    step |= {"packing": "engine", "company": []} if kind == "prefill" else {"reset_cache": True, "company": []}
    plain, watched, points = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds + 1):
            started = time.perf_counter()
            engine.run(step, sequences)
            middle = time.perf_counter()
            _, seen = observed(name, engine, {**step, "observe": {"target": None}}, sequences, folder)
            plain.append(middle - started)
            watched.append(time.perf_counter() - middle)
            points = seen["points"]
    # The first round warms up.
    ratios = [w / p for w, p in zip(watched[1:], plain[1:], strict=True)]
    return {"ratio": statistics.median(ratios), "plain": statistics.median(plain[1:]), "points": points}


if __name__ == "__main__":
    sys.exit(main())
