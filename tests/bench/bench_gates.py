"""Speed of the gates, with many pieces of evidence stored.

    python tests/bench/bench_gates.py [--evidence 100000]

Prints: the median time of the board (configuration read, files that provenance named stat'ed, every gate evaluated,
every signature checked once), of `submit_gate`, and of `verify` (chain, signatures and submissions) in rows a second.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from bitgate.gates import decisions, reviewers
from bitgate.gates.ledger import LedgerView
from bitgate.gates.roles import Actor
from bitgate.gates.rows import pretty
from bitgate.gates.spec import Need
from bitgate.gates.submit import submit
from bitgate.gates.table import BY_ID, GATES
from bitgate.gates.today import Today
from bitgate.gates.verify import verify
from bitgate.server.gate_today import FINGERPRINT, today
from bitgate.store import Store
from bitgate.store.records import ArtifactRef, Coverage, Finding, ModelRecord, RegisteredModel, SideRecord
from bitgate.tools.config.project import Project

LIMITS: Final = {"board": 50.0, "submit_gate": 100.0, "verify": 50_000.0}
FILES: Final = 2_000
CONFIG: Final = """
[model.full]
path = "full"
[side.rollout]
engine = "python"
python = "python3"
module = "mine.py"
[side.trainer]
engine = "python"
python = "python3"
module = "mine.py"
[side.baseline]
engine = "python"
python = "python3"
module = "mine.py"
owner = "baseline"
[policy]
updates_per_step = 1
corrections = []
cross_rank_reduction = "none"
"""
FULL: Final = ModelRecord(name="full", architecture_digest="a" * 64, weights_digest="b" * 64)
SLICE: Final = ModelRecord(name="full-slice", architecture_digest="c" * 64, weights_digest="d" * 64, slice_of="full")
LEGS: Final = {"rollout/recompute": {"compared": 9}, "rollout/first_train_forward": {"compared": 9}}


def observed(project: Project, name: str, version: str = "1.0") -> SideRecord:
    from bitgate.server.gate_today import configured_record

    side, stable = project.side(name), {"engine": version}
    record = configured_record(side)
    return record.model_copy(update={"stable": stable, "digest": side.digest(stable, record.axes)})


def record(
    store: Store, need: Need, sides: list[SideRecord], actor: str, artifacts: tuple[ArtifactRef, ...] = ()
) -> str:
    run = store.start_run(need.tool, {"check": need.check}, actor)
    model = {"full": FULL, "slice": SLICE, None: None}[need.model]
    finding = Finding(
        verdict="pass", summary="equal", next="go on", grade="observed", check=need.check,
        figures={"comparisons": LEGS},
        sides={side.name: side for side in sides}, models={model.name: model} if model else {}, artifacts=artifacts,
        coverage=Coverage(exercised=tuple({axis for side in sides for axis in side.axes})),
    )  # fmt: skip
    evidence = store.finish_run(run.id, "finished", finding=finding)
    assert evidence is not None
    return evidence.id


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
                actor = "person:a" if "baseline" in need.sides else "consistency:a"
                record(store, need, [sides[name, number % 50] for name in need.sides], actor)


def walk(store: Store, project: Project, folder: Path, key: Path) -> None:
    """C0 to C6 pass, the baseline frozen by a signature."""
    files = provenance_files(folder)
    body = {"host": socket.gethostname(), "files": files}
    named = store.artifacts.put_bytes(json.dumps(body, allow_nan=False).encode(), FINGERPRINT, "application/json")
    slice_path = folder / "slice"
    slice_path.mkdir()
    store.register_model(RegisteredModel(**SLICE.model_dump(), path=str(slice_path)), "consistency:a")
    for gate in GATES[:7]:
        for need in gate.needs:
            artifacts = (named,) if need.tool == "check_provenance" else ()
            actor = "baseline:a" if need.sides == ("baseline",) else "consistency:a"
            record(store, need, [observed(project, name) for name in need.sides], actor, artifacts)
        if gate.id == "C1":
            freeze(store, project, key)
        else:
            submit(store, gate.id, now(project, store), Actor("consistency", "a"))


def provenance_files(folder: Path) -> list[list[object]]:
    (folder / "files").mkdir()
    found: list[list[object]] = []
    for number in range(FILES):
        path = folder / "files" / f"module_{number}.py"
        path.touch()
        stat = path.stat()
        found.append([str(path), stat.st_size, stat.st_mtime_ns])
    return found


def freeze(store: Store, project: Project, key: Path) -> None:
    from bitgate.gates.baseline import propose

    tuned = record(store, BY_ID["C1"].needs[1], [observed(project, "baseline")], "baseline:a")
    propose(store, now(project, store), Actor("baseline", "a"), tuning=[tuned])
    made = decisions.decision_for(store, "C1", now(project, store), "approve")
    decisions.record(store, pretty(made), decisions.sign_with(made, key), now(project, store))


def now(project: Project, store: Store) -> Today:
    """Today with every tool in existence, so that every need is really looked up."""
    return replace(today(project, store), tools=frozenset(need.tool for gate in GATES for need in gate.needs))


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
        key = folder / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "rosa", "-f", str(key)], check=True)
        (folder / "bitgate.toml").write_text(CONFIG, encoding="utf-8")
        (folder / "full").mkdir()
        measure(folder, key, count)


def measure(folder: Path, key: Path, count: int) -> None:
    signers = f"rosa {key.with_suffix('.pub').read_text(encoding='utf-8')}"
    with Store.open(folder / ".bitgate" / "ledger.db") as store:
        reviewers.found(store, signers, "person:rosa")
        project = Project.load(folder)
        fill(store, project, count)
        walk(store, project, folder, key)
        states = {gate: status.state for gate, status in LedgerView(store).board(now(project, store)).items()}
        assert [states[f"C{n}"] for n in range(7)] == ["passed"] * 7, states

        def board() -> None:
            here = project.refreshed()
            LedgerView(store).board(now(here, store))

        board_ms, board_cpu = median_ms(board)
        submit_ms, submit_cpu = median_ms(lambda: submit(store, "C5", now(project, store), Actor("consistency", "a")))
        head = store.head().hash
    start, cpu = time.perf_counter(), time.process_time()
    found = verify(folder / ".bitgate" / "ledger.db", head=head, reviewers=signers)
    rate, cpu_rate = (
        found.ledger.rows / seconds for seconds in (time.perf_counter() - start, time.process_time() - cpu)
    )
    assert found.ok, found.problems[:3]
    say(f"{count} pieces of evidence, {found.ledger.rows} rows, {FILES} files named by provenance")
    say(f"board        {board_ms:8.1f} ms   (at most {LIMITS['board']:.0f}; processor {board_cpu:.1f})")
    say(f"submit_gate  {submit_ms:8.1f} ms   (at most {LIMITS['submit_gate']:.0f}; processor {submit_cpu:.1f})")
    say(f"verify       {rate:8.0f} rows/s (at least {LIMITS['verify']:.0f}; {cpu_rate:.0f} per processor second)")
    if board_ms > LIMITS["board"] or submit_ms > LIMITS["submit_gate"] or rate < LIMITS["verify"]:
        sys.exit("a figure is not reached")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
