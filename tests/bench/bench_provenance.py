"""Hashing a whole engine environment, as ratios in one run.

    python tests/bench/bench_provenance.py [--environment DIR] [--rounds 5]

Prints: files and bytes; seconds with a cold and with a warm hash cache; one hashlib.sha256 loop over the same files in
the same process, taking turns with the cold run so that both see the same machine; the page cache is warm for all.
With BITGATE_ENGINE_PYTHON set, the environment is that interpreter's. Ends with 1 when a limit is missed: both need an
otherwise idle machine, for the loop has one core in any case and the cache all of them.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bitgate.tools.provenance.hashing import HashCache

GOAL_COLD = 4.0
GOAL_WARM_S = 2.0


def files_of(root: Path) -> list[str]:
    """Every regular file except compiled bytecode, which follows from its source and is judged apart."""
    found = []
    for folder, _, names in os.walk(root):
        paths = (os.path.join(folder, name) for name in names if not name.endswith(".pyc"))
        found += [path for path in paths if not os.path.islink(path) and os.path.isfile(path)]
    return found


def one_loop(paths: list[str]) -> None:
    for path in paths:
        with open(path, "rb") as file:
            hashlib.sha256(file.read()).hexdigest()


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def load() -> str:
    return f"load {os.getloadavg()[0]:.1f}"


def main() -> None:
    python = os.environ.get("BITGATE_ENGINE_PYTHON")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", type=Path, default=Path(python).parent.parent if python else None)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.environment is None:
        parser.error("name an environment with --environment, or set BITGATE_ENGINE_PYTHON")
    paths = files_of(options.environment)
    size = sum(os.path.getsize(path) for path in paths)
    cores = len(os.sched_getaffinity(0))
    print(f"{options.environment}: {len(paths):,} files, {size / 1e9:.2f} GB, {cores} cores, {load()}")
    one_loop(paths)
    with tempfile.TemporaryDirectory() as folder:
        cold, loop, warm = [], [], []
        for number in range(options.rounds):
            cache = HashCache(Path(folder) / f"{number}.db")
            cold.append(timed(lambda cache=cache: cache.blake3(paths)))
            loop.append(timed(lambda: one_loop(paths)))
            warm.append(timed(lambda cache=cache: cache.blake3(paths)))
    ratio = statistics.median(b / a for a, b in zip(cold, loop, strict=True))
    hot = statistics.median(warm)
    print(f"sha256 loop {min(loop):.2f} s, cold cache {min(cold):.2f} s, warm cache {min(warm):.2f} s (best of each)")
    print(f"cold cache: {ratio:.2f} times as fast as the loop (median of pairs; at least {GOAL_COLD:g}); {load()}")
    print(f"warm cache: {hot:.2f} s (median; under {GOAL_WARM_S:g} s)")
    sys.exit(ratio < GOAL_COLD or hot >= GOAL_WARM_S)


if __name__ == "__main__":
    main()
