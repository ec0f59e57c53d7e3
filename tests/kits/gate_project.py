"""A real project on disk whose ledger is filled through the store's own API: for tests and benchmarks of the gates."""

from __future__ import annotations

import json
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Final

from bitgate.gates import decisions, reviewers
from bitgate.gates.baseline import propose
from bitgate.gates.roles import Actor
from bitgate.gates.rows import pretty
from bitgate.gates.spec import Need
from bitgate.gates.submit import submit
from bitgate.gates.table import BY_ID, GATE_IDS, GATES
from bitgate.gates.today import Today
from bitgate.server.gate_today import FINGERPRINT, configured_record, today
from bitgate.store import Store
from bitgate.store.records import ArtifactRef, Coverage, Finding, ModelRecord, RegisteredModel, SideRecord
from bitgate.tools.config.project import Project

REVIEWER: Final = "rosa"
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
[side.cand]
engine = "python"
python = "python3"
module = "mine.py"
owner = "baseline"
[workload.short]
max_tokens = 4
[workload.short.generator]
count = 2
length = 3
[policy]
updates_per_step = 1
corrections = []
cross_rank_reduction = "none"
"""
FULL: Final = ModelRecord(name="full", architecture_digest="a" * 64, weights_digest="b" * 64)
SLICE: Final = ModelRecord(name="full-slice", architecture_digest="c" * 64, weights_digest="d" * 64, slice_of="full")
LEGS: Final = {"rollout/recompute": {"compared": 9}, "rollout/first_train_forward": {"compared": 9}}
BASELINE: Final = Actor("baseline", "a")
CONSISTENCY: Final = Actor("consistency", "a")


def make_project(root: Path) -> Project:
    (root / "bitgate.toml").write_text(CONFIG, encoding="utf-8")
    (root / "full").mkdir()
    return Project.load(root)


def make_key(folder: Path) -> Path:
    """A throwaway private key; its public half lies beside it."""
    key = folder / "key"
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", REVIEWER, "-f", str(key)]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    return key


def signers_of(key: Path) -> str:
    return f"{REVIEWER} {key.with_suffix('.pub').read_text(encoding='utf-8')}"


def found_reviewers(store: Store, key: Path) -> str:
    signers = signers_of(key)
    reviewers.found(store, signers, f"person:{REVIEWER}")
    return signers


def observed(project: Project, name: str, version: str = "1.0") -> SideRecord:
    """The side as configured, and as if its engine had been seen in this version."""
    side, stable = project.side(name), {"engine": version}
    record = configured_record(side)
    return record.model_copy(update={"stable": stable, "digest": side.digest(stable, record.axes)})


def record(
    store: Store, need: Need, sides: list[SideRecord], actor: str, artifacts: tuple[ArtifactRef, ...] = ()
) -> str:
    """A passing result of the need's tool about these sides; its id."""
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


def walk(store: Store, project: Project, key: Path, last: str, files: int = 0) -> None:
    """Every gate up to `last` passes, the baseline frozen by a signature. Provenance names so many files."""
    named = _fingerprint(store, project.root, files)
    _register_slice(store, project.root)
    for gate_id in GATE_IDS[: GATE_IDS.index(last) + 1]:
        meet(store, project, gate_id, named)
        if gate_id == "C1":
            freeze(store, project, key)
        else:
            submit(store, gate_id, now(project, store), CONSISTENCY)


def meet(store: Store, project: Project, gate_id: str, named: ArtifactRef | None = None) -> None:
    """Evidence for each need of a gate."""
    for need in BY_ID[gate_id].needs:
        artifacts = (named,) if named and need.tool == "check_provenance" else ()
        actor = (BASELINE if need.sides == ("baseline",) else CONSISTENCY).text
        record(store, need, [observed(project, name) for name in need.sides], actor, artifacts)


def propose_tuned(store: Store, project: Project) -> None:
    """The baseline with a tuning record, so that C1 awaits a person."""
    tuned = record(store, BY_ID["C1"].needs[1], [observed(project, "baseline")], BASELINE.text)
    propose(store, now(project, store), BASELINE, tuning=[tuned])


def freeze(store: Store, project: Project, key: Path) -> None:
    propose_tuned(store, project)
    made = decisions.decision_for(store, "C1", now(project, store), "approve")
    decisions.record(store, pretty(made), decisions.sign_with(made, key), now(project, store))


def now(project: Project, store: Store) -> Today:
    """Today with every tool in existence, so that every need is really looked up."""
    return replace(today(project, store), tools=frozenset(need.tool for gate in GATES for need in gate.needs))


def _fingerprint(store: Store, root: Path, count: int) -> ArtifactRef:
    """What check_provenance leaves: files that really lie there, with size and time."""
    folder = root / "files"
    folder.mkdir()
    found: list[list[object]] = []
    for number in range(count):
        path = folder / f"module_{number}.py"
        path.touch()
        stat = path.stat()
        found.append([str(path), stat.st_size, stat.st_mtime_ns])
    body = json.dumps({"host": socket.gethostname(), "files": found}, allow_nan=False)
    return store.artifacts.put_bytes(body.encode(), FINGERPRINT, "application/json")


def _register_slice(store: Store, root: Path) -> None:
    path = root / "slice"
    path.mkdir()
    store.register_model(RegisteredModel(**SLICE.model_dump(), path=str(path)), CONSISTENCY.text)
