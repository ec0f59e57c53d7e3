"""Speed of the gates, with many pieces of evidence stored.

    python tests/bench/bench_gates.py [--evidence 100000]

Prints: the median time of the board (configuration read, files that provenance named stat'ed, every gate evaluated,
every signature checked once), of `submit_gate`, and of `verify` (chain, signatures and submissions) in rows a second.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1] / "kits"))

from gate_project import CONSISTENCY, found_reviewers, make_key, make_project, now, observed, record, walk

from bitgate.gates.ledger import LedgerView
from bitgate.gates.submit import submit
from bitgate.gates.table import GATES
from bitgate.gates.verify import verify
from bitgate.store import Store
from bitgate.tools.config.project import Project

LIMITS: Final = {"board": 50.0, "submit_gate": 100.0, "verify": 50_000.0}
"""Milliseconds at most, milliseconds at most, rows a second at least."""
FILES: Final = 2_000


def fill(store: Store, project: Project, count: int) -> None:
    """Old results of other versions of every side, of every kind that a gate asks for, and some that say no."""
    needs = [need for gate in GATES for need in gate.needs]
    store.ledger.rows("PRAGMA synchronous = OFF")  # only to get there sooner: what is measured afterwards reads
    sides = {
        (name, v): observed(project, name, f"0.{v}") for name in ("rollout", "trainer", "baseline") for v in range(50)
    }
    for first in range(0, count, 1000):
        with store.transaction():
            for number in range(first, min(first + 1000, count)):
                need = needs[number % len(needs)]
                actor = "person:a" if "baseline" in need.sides else CONSISTENCY.text
                record(store, need, [sides[name, number % 50] for name in need.sides], actor)


def median_ms(act: Callable[[], object], times: int = 20) -> tuple[float, float]:
    """Wall clock, and processor time beside it: on a busy machine only the second says what the code costs."""
    walls, cpus = [], []
    for _ in range(times):
        wall, cpu = time.perf_counter(), time.process_time()
        act()
        walls.append((time.perf_counter() - wall) * 1000)
        cpus.append((time.process_time() - cpu) * 1000)
    return statistics.median(walls), statistics.median(cpus)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--evidence", type=int, default=100_000)
    count = parser.parse_args().evidence
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measure(make_project(folder), make_key(folder), count)


def measure(project: Project, key: Path, count: int) -> None:
    with Store.open(project.ledger) as store:
        signers = found_reviewers(store, key)
        fill(store, project, count)
        walk(store, project, key, "C6", FILES)
        states = {gate: status.state for gate, status in LedgerView(store).board(now(project, store)).items()}
        assert [states[f"C{n}"] for n in range(7)] == ["passed"] * 7, states

        def board() -> None:
            here = project.refreshed()
            LedgerView(store).board(now(here, store))

        board_ms, board_cpu = median_ms(board)
        submit_ms, submit_cpu = median_ms(lambda: submit(store, "C5", now(project, store), CONSISTENCY))
        head = store.head().hash
    start, cpu = time.perf_counter(), time.process_time()
    found = verify(project.ledger, head=head, reviewers=signers)
    rate, cpu_rate = (
        found.ledger.rows / seconds for seconds in (time.perf_counter() - start, time.process_time() - cpu)
    )
    assert found.ok, found.problems[:3]
    say(f"{count} pieces of evidence, {found.ledger.rows} rows, {FILES} files named by provenance")
    say(f"board        {board_ms:8.1f} ms   (at most {LIMITS['board']:.0f}; processor {board_cpu:.1f})")
    say(f"submit_gate  {submit_ms:8.1f} ms   (at most {LIMITS['submit_gate']:.0f}; processor {submit_cpu:.1f})")
    say(f"verify       {rate:8.0f} rows/s (at least {LIMITS['verify']:.0f}; {cpu_rate:.0f} per processor second)")
    sys.exit(missed(board_ms, submit_ms, rate))


def missed(board_ms: float, submit_ms: float, rate: float) -> str | None:
    """The limits that were not kept, in words: exit code 1; None, and 0, when all were."""
    kept = {
        "board": board_ms <= LIMITS["board"],
        "submit_gate": submit_ms <= LIMITS["submit_gate"],
        "verify": rate >= LIMITS["verify"],
    }
    return ", ".join(f"{name} misses its limit" for name, good in kept.items() if not good) or None


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
