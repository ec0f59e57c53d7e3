"""Speed and memory of comparing captures, as ratios in one run.

    python tests/bench/bench_compare.py [--rows 100000000] [--resident-rows 300000000] [--folder DIR]

Prints: equal captures and captures with 1 % of rows different, each against numpy.array_equal over the same columns of
the same files (memory-mapped, page cache warm), and the resident memory of a comparison of many rows; each beside its
limit. Exits with 1 when one is missed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from figures import Figures

from bitgate.tools.captures import Capture, open_capture
from bitgate.tools.compare import compare_pair

COLUMNS = {"sequence": np.int64, "position": np.int64, "token_id": np.int64, "mask": np.uint8, "logprob": np.float32}
SAFETENSORS = {np.int64: "I64", np.uint8: "U8", np.float32: "F32"}
BLOCK = 1 << 20
LENGTH = 512
VOCABULARY = 151_936
EQUAL, DIFFERENT, RESIDENT_MIB = 1.5, 3.0, 1024.0


def column(name: str, start: int, stop: int, rng: np.random.Generator) -> np.ndarray:
    rows = np.arange(start, stop)
    if name == "sequence":
        return rows // LENGTH
    if name == "position":
        return rows % LENGTH + 100
    if name == "token_id":
        return rng.integers(0, VOCABULARY, len(rows))
    if name == "mask":
        return (rng.random(len(rows), np.float32) < 0.8).astype(np.uint8)
    return -rng.exponential(1.5, len(rows)).astype(np.float32)


def write(folder: Path, rows: int, *, different: float = 0.0, backwards: bool = False) -> None:
    """A valid capture, written block by block.

    different: the share of rows moved by one ulp. backwards: the blocks, and so the sequences, in another order.
    """
    folder.mkdir(parents=True)
    offset, header = 0, {}
    for name, dtype in COLUMNS.items():
        size = rows * np.dtype(dtype).itemsize
        header[name] = {"dtype": SAFETENSORS[dtype], "shape": [rows], "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, allow_nan=False).encode()
    text += b" " * (-len(text) % 8)
    masked = 0
    with open(folder / "rows.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, dtype in COLUMNS.items():
            starts = range(0, rows, BLOCK)
            for start in reversed(starts) if backwards else starts:
                rng, change = np.random.default_rng([7, start]), np.random.default_rng([8, start])
                values = column(name, start, min(start + BLOCK, rows), rng).astype(dtype)
                if name == "mask":
                    masked += int(values.sum())
                if name == "logprob" and different:
                    chosen = change.random(len(values), np.float32) < different
                    values[chosen] = np.nextafter(values[chosen], np.float32(-np.inf))
                file.write(values.tobytes())
    (folder / "capture.json").write_text(json.dumps(meta(rows, masked), allow_nan=False), encoding="utf-8")


def meta(rows: int, masked: int) -> dict[str, object]:
    return {
        "format": "bitgate.capture",
        "version": 1,
        "engine": "bench",
        "role": "bench",
        "weights": {"digest": "0" * 64, "version": 0},
        "sampling": None,
        "logprobs": {"mode": "raw_logprobs", "temperature": 1.0, "dtype": "float32"},
        "rows": {
            "file": "rows.safetensors",
            "count": rows,
            "masked": masked,
            "sequences": -(-rows // LENGTH),
        },
    }


def mapped(capture: Capture) -> dict[str, np.ndarray]:
    layout = capture.rows.layouts[0]  # type: ignore[attr-defined]
    return {
        name: np.memmap(layout.path, dtype, "r", layout.tensors[name].offset, layout.tensors[name].shape)
        for name, dtype in COLUMNS.items()
    }


def all_equal(a: Capture, b: Capture) -> bool:
    left, right = mapped(a), mapped(b)
    return all(np.array_equal(left[name], right[name]) for name in COLUMNS)


def best(work: Callable[[], object], times: int) -> float:
    """Seconds of the fastest of some runs: others share this machine, and what they add is not ours."""
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return min(taken)


def speed(figures: Figures, folder: Path, rows: int, times: int) -> None:
    write(folder / "a", rows)
    write(folder / "b", rows)
    write(folder / "c", rows, different=0.01)
    a, b, c = (open_capture(folder / name, name=name) for name in "abc")
    all_equal(a, b)
    all_equal(a, c)
    reference = best(lambda: all_equal(a, b), times)
    equal = best(lambda: compare_pair(a, b), times)
    different = best(lambda: compare_pair(a, c), times)
    assert compare_pair(a, b).verdict == "pass"
    found = compare_pair(a, c)
    print(f"rows                              {rows:>12,}")
    print(f"numpy.array_equal                 {reference:8.2f} s")
    figures.at_most("equal captures", equal / reference, EQUAL, "x", detail=f"{equal:.2f} s")
    seconds = f"{different:.2f} s, {found.different:,} rows"
    figures.at_most("1 % of rows different", different / reference, DIFFERENT, "x", detail=seconds)


def resident(figures: Figures, folder: Path, rows: int) -> None:
    write(folder / "a", rows)
    write(folder / "b", rows, different=0.001)
    measure(figures, folder, "in the same order")
    shutil.rmtree(folder / "b")
    write(folder / "b", rows, different=0.001, backwards=True)
    measure(figures, folder, "in another order")


def measure(figures: Figures, folder: Path, order: str) -> None:
    code = (
        "import resource, sys\n"
        "from bitgate.tools.captures import open_capture\n"
        "from bitgate.tools.compare import compare_pair\n"
        "found = compare_pair(open_capture(sys.argv[1]), open_capture(sys.argv[2]))\n"
        "print(found.rows_a, found.different, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, folder / "a", folder / "b"], capture_output=True, text=True, check=True
    )
    count, different, kib = (int(part) for part in done.stdout.split())
    rows = f"{count:,} rows, {different:,} different"
    figures.at_most(f"resident memory {order}", kib / 1024, RESIDENT_MIB, "MiB", detail=rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--resident-rows", type=int, default=300_000_000, help="0 leaves this part out")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder by default, removed at the end")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bitgate-bench-", dir=arguments.folder))
    try:
        figures = Figures()
        speed(figures, folder / "speed", arguments.rows, arguments.times)
        shutil.rmtree(folder / "speed")
        if arguments.resident_rows:
            resident(figures, folder / "resident", arguments.resident_rows)
        figures.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
