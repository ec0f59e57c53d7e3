"""Figures of slice_model: `bench_slice.py [--gb 12] [--runs 3]`, and `--families` for the table of families.

The cut keeps a third of a checkpoint of random bytes. It is compared with `cp` of the same bytes and a BLAKE3 pass over
each of the two copies, in turns, in the same page cache; both sides end in fsync. Ratios of one run, so that they mean
the same on any machine. Each figure stands beside its limit; exits with 1 when one is missed, and with 2 when the
families could not be tried, which needs the engine's interpreter (BITGATE_ENGINE_PYTHON).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from blake3 import blake3
from figures import Figures

from bitgate.tools.slice import copying
from bitgate.tools.slice.checkpoint import open_checkpoint
from bitgate.tools.slice.cut import cut
from bitgate.tools.slice.family import read_model
from bitgate.tools.slice.header import encode_header
from bitgate.tools.slice.keys import Selection
from bitgate.tools.slice.layout import lay_out

LAYERS, KEPT = 24, tuple(range(5, 13))
PER_LAYER = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
)
TIME_RATIO, PEAK_MB, FAMILIES = 1.25, 300.0, 22
NO_ENGINE = (
    "no family was tried: they are checked in the engine, and BITGATE_ENGINE_PYTHON names no engine interpreter; "
    "run `make engine`, or use `make bench`"
)
BYTES_ONLY = ["deepseek_v41"]
"""No transformers or CPU engine builds it, so neither its keys nor its computation can be checked."""
PUBLIC = "16 of 22"
"""What public truncators reach on this list of families (Megatron-Bridge's toy-model script, measured)."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--gb", type=float, default=0.0, help="size of the checkpoint; default 12, less on a small disk"
    )
    parser.add_argument("--runs", type=int, default=3, help="how often each side runs")
    parser.add_argument("--folder", type=Path, default=None, help="where to work; default: the temporary folder")
    parser.add_argument("--families", action="store_true", help="only the table of families (needs the engine)")
    parser.add_argument("--child", nargs=3, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(*options.child)
    figures = Figures()
    if not options.families:
        bench_cut(figures, options)
    if not os.environ.get("BITGATE_ENGINE_PYTHON"):
        print(NO_ENGINE, file=sys.stderr)
        figures.end()
        return 2
    bench_families(figures)
    figures.end()
    return 0


def bench_cut(figures: Figures, options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="bitgate-bench-slice-", dir=options.folder) as name:
        folder = Path(name)
        size = options.gb or affordable(folder)
        source = folder / "source"
        write_checkpoint(source, int(size * 1e9))
        found = measured(folder, source, options.runs)
    print(json.dumps(found, indent=2, allow_nan=False))
    figures.at_most("cut over cp and two BLAKE3 passes", found["time_ratio"], TIME_RATIO, "x")
    figures.at_most("peak memory of the cut", found["peak_mb"], PEAK_MB, "MiB")


def affordable(folder: Path) -> float:
    """12 GB where the disk and the page cache hold the checkpoint and its copies, otherwise what they hold."""
    free = shutil.disk_usage(folder).free / 1e9
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    return max(0.6, min(12.0, free / 3, memory / 1.8))


def write_checkpoint(root: Path, size: int) -> None:
    """`LAYERS` equal layers in four shards; random bytes, each tensor another stretch of one random block."""
    root.mkdir()
    block = os.urandom(64 << 20)
    each = size // (LAYERS * len(PER_LAYER)) // 4096 * 4096
    names = [f"model.layers.{i}.{part}.weight" for i in range(LAYERS) for part in PER_LAYER]
    names += ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
    sizes = {name: each if ".layers." in name else 4096 for name in names}
    weight_map, quarter = {}, -(-len(names) // 4)
    for number in range(4):
        part = names[number * quarter : (number + 1) * quarter]
        file = f"model-{number + 1:05d}-of-00004.safetensors"
        weight_map.update(dict.fromkeys(part, file))
        with (root / file).open("wb") as target:
            target.write(encode_header([(name, "U8", (sizes[name],), sizes[name]) for name in part], {"format": "pt"}))
            for place, name in enumerate(part):
                write_random(target, block, sizes[name], (number * 1009 + place) * 7919)
            target.flush()
            os.fsync(target.fileno())
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": LAYERS,
        "vocab_size": 8,
    }
    (root / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (root / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")


def write_random(target: Any, block: bytes, size: int, start: int) -> None:
    while size:
        start %= len(block)
        part = block[start : start + size]
        target.write(part)
        size -= len(part)
        start = 0


def measured(folder: Path, source: Path, runs: int) -> dict[str, Any]:
    """Cut and copy in turns (ABBA…), each in a process of its own."""
    warm = run_child("cut", source, folder / "warm")
    same = folder / "same"
    (folder / "warm").rename(same)
    cuts: list[dict[str, Any]] = []
    copies: list[dict[str, Any]] = []
    for number in range(runs):
        order = ("cut", "cp") if number % 2 == 0 else ("cp", "cut")
        for what in order:
            done = run_child(what, source if what == "cut" else same, folder / "out")
            (cuts if what == "cut" else copies).append(done)
            shutil.rmtree(folder / "out")
    ratios = [a["seconds"] / b["seconds"] for a, b in zip(cuts, copies, strict=True)]
    kept = warm["kept"]
    return {
        "checkpoint_gb": round(sum(p.stat().st_size for p in source.iterdir()) / 1e9, 2),
        "kept_gb": round(kept / 1e9, 2),
        "source_bytes_read_per_kept_byte": round(warm["source_bytes"] / kept, 3),
        "copied_in_kernel": warm["in_kernel"],
        "cut_seconds": [round(item["seconds"], 2) for item in cuts],
        "cp_and_two_blake3_seconds": [round(item["seconds"], 2) for item in copies],
        "time_ratio": round(statistics.median(ratios), 3),
        "peak_mb": round(max(item["peak_mb"] for item in (warm, *cuts)), 1),
    }


def run_child(what: str, source: Path, out: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", what, str(source), str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    answer = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, answer
    return {**json.loads(answer), "peak_mb": usage.ru_maxrss / 1024}


def child(what: str, source: str, out: str) -> int:
    started = time.perf_counter()
    figures = cut_once(Path(source), Path(out)) if what == "cut" else copy_once(Path(source), Path(out))
    print(json.dumps({**figures, "seconds": time.perf_counter() - started}, allow_nan=False))
    return 0


def cut_once(source: Path, out: Path) -> dict[str, Any]:
    read = Counter[int]()
    real = os.preadv

    def counting(file: int, buffers: Any, offset: int) -> int:
        count = real(file, buffers, offset)
        read[os.fstat(file).st_ino] += count
        return count

    os.preadv = counting  # type: ignore[assignment]
    checkpoint = open_checkpoint(source)
    model = read_model(checkpoint.config)
    layout = lay_out(checkpoint, model, Selection(KEPT, LAYERS))
    result = cut(checkpoint, layout, out, {}, lambda done, total: None)
    assert not result.different
    return {
        "kept": result.size,
        "source_bytes": sum(read[path.stat().st_ino] for path in source.iterdir()),
        "in_kernel": result.in_kernel,
    }


def copy_once(source: Path, out: Path) -> dict[str, Any]:
    """cp, fsync, and a BLAKE3 pass over each side with all threads."""
    out.mkdir()
    for path in sorted(source.iterdir()):
        subprocess.run(["cp", str(path), str(out / path.name)], check=True)
        handle = os.open(out / path.name, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
    handle = os.open(out, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
    digests = [[digest(path) for path in sorted(side.iterdir())] for side in (source, out)]
    assert digests[0] == digests[1]
    return {}


def digest(path: Path) -> str:
    hasher, buffer = blake3(max_threads=blake3.AUTO), bytearray(copying.CHUNK)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            hasher.update(memoryview(buffer)[:count])
    return hasher.hexdigest()


def bench_families(figures: Figures) -> None:
    """The families' tests, one line each: tried and correct, beside what public truncators reach."""
    tests = Path(__file__).parents[1] / "tools" / "slice"
    sys.path.insert(0, str(tests))
    from make_names import DERIVED_NAMES, FIRST_LIST, PLAIN, QUANTISED_NAMES, THEN

    command = [sys.executable, "-m", "pytest", "-q", "-rA", "--tb=no", str(tests / "test_families.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    failed = {
        line.split("[")[-1].rstrip("]") for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))
    }
    failed = {name.split(" ")[0].rstrip("]") for name in failed}
    names = [*PLAIN, *DERIVED_NAMES, *QUANTISED_NAMES]
    wrong = {
        family for family in (*FIRST_LIST, *THEN) if any(n == family or n.startswith(family + "_") for n in failed)
    }
    # Without results of its tests (pytest's 0 and 1 have them) no family counts as correct.
    wrong |= set() if done.returncode in (0, 1) else {*FIRST_LIST, *THEN}
    tried, first = len(FIRST_LIST) + len(THEN), len(FIRST_LIST)
    found = {
        "families_tried": tried,
        "proved_by_bytes_only": BYTES_ONLY,
        "checkpoints_cut": len(names),
        "public_truncators": PUBLIC,
        "wrong": sorted(wrong),
    }
    print(json.dumps(found, indent=2, allow_nan=False))
    if done.returncode:
        print(done.stdout[-2000:], done.stderr[-2000:], sep="\n", file=sys.stderr)
    figures.at_least("families cut correctly", tried - len(wrong), FAMILIES, detail=f"of {tried} tried")
    figures.at_least("of the first list", first - len(wrong & set(FIRST_LIST)), first)
    figures.holds("tests of the families", f"pytest ended with {done.returncode}", "0", done.returncode == 0)


if __name__ == "__main__":
    sys.exit(main())
