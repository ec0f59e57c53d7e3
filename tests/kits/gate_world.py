"""A project in miniature: sides, models, reviewers with real SSH keys, a ledger filled through the store's own API."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bitgate.gates import decisions, reviewers
from bitgate.gates.baseline import Proposed, propose
from bitgate.gates.ledger import LedgerView
from bitgate.gates.roles import Actor
from bitgate.gates.rows import pretty
from bitgate.gates.spec import Need
from bitgate.gates.status import GateStatus
from bitgate.gates.submit import Submission, submit
from bitgate.gates.table import BY_ID, GATE_IDS
from bitgate.gates.today import ModelToday, PolicyToday, SideToday, Today
from bitgate.store import Store
from bitgate.store.canonical import canonical
from bitgate.store.chain import row_hash
from bitgate.store.records import Coverage, Evidence, Finding, ModelRecord, SideRecord
from bitgate.store.schema import TRIGGERS, create_objects, drop_objects

BASELINE = Actor("baseline", "ann-agent")
CONSISTENCY = Actor("consistency", "bo-agent")
OBSERVER = Actor("observer", "looker")
THREE_LEGS = {
    "rollout/recompute": {"compared": 4096, "different": 0},
    "rollout/first_train_forward": {"compared": 4096, "different": 0},
}
EXISTING = frozenset({"run_compare", "bisect_layer", "slice_model", "ab_benchmark", "check_provenance"})
LATER = frozenset({"check_gradient", "check_updates", "check_resume"})


def side(name: str, engine: str = "vllm", **changes: object) -> SideRecord:
    body = {"engine": engine, "options": {"batch_invariant": name != "baseline"}, "axes": ("decode",), "env": {}}
    body |= {"stable": {"vllm": "0.32.0", "attention": "CPU_ATTN"}, **changes}
    volatile = body.pop("volatile", {"job_id": "17"})
    text = json.dumps(body, sort_keys=True)
    return SideRecord(name=name, digest=hashlib.sha256(text.encode()).hexdigest(), volatile=volatile, **body)


def model(name: str, slice_of: str | None = None, weights: str = "w") -> ModelRecord:
    digests = [hashlib.sha256(f"{what}{name}{weights}".encode()).hexdigest() for what in "aw"]
    return ModelRecord(name=name, architecture_digest=digests[0], weights_digest=digests[1], slice_of=slice_of)


SIDES = {"rollout": side("rollout"), "trainer": side("trainer", engine="vllm_kernels"), "baseline": side("baseline")}
MODELS = {"full": model("tiny"), "slice": model("tiny-slice", slice_of="tiny")}
POLICY = PolicyToday(updates_per_step=1, corrections=(), cross_rank_reduction="none")


def today_with(**sides: SideRecord) -> Today:
    records = {**SIDES, **sides}
    return Today(
        sides={name: SideToday(name, record=record, configured=record) for name, record in records.items()},
        models={name: ModelToday(record.name, record) for name, record in MODELS.items()},
        policy=POLICY,
        tools=EXISTING,
        now="2026-11-30T12:00:00.000Z",
    )


@dataclass
class Clock:
    """Time that a test moves; one millisecond a reading, so that rows are in order."""

    at: datetime = datetime(2026, 11, 30, 11, 0, tzinfo=UTC)

    def __call__(self) -> str:
        self.at += timedelta(milliseconds=1)
        return self.at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass
class World:
    """A store with reviewers, and short words for what agents and people do to it."""

    store: Store
    keys: dict[str, Path]
    clock: Clock
    today: Today = field(default_factory=today_with)
    actor: Actor = CONSISTENCY

    def changed(self, **sides: SideRecord) -> Today:
        """Today with these sides replaced."""
        found = {name: SideToday(name, record=record, configured=record) for name, record in sides.items()}
        self.today = replace(self.today, sides={**self.today.sides, **found})
        return self.today

    def all_tools(self) -> None:
        self.today = replace(self.today, tools=EXISTING | LATER)

    @property
    def forger(self) -> Forger:
        return Forger(self)

    @property
    def other_rollout(self) -> SideRecord:
        """The rollout side with one option changed."""
        return side("rollout", options={"batch_invariant": False})

    side = staticmethod(side)
    model = staticmethod(model)

    # what tools do

    def evidence(self, tool: str, check: str | None = None, actor: Actor | None = None, **changes: object) -> Evidence:
        run = self.store.start_run(tool, {"check": check}, (actor or self.actor).text)
        sides = changes.pop("sides", {})
        models = changes.pop("models", {})
        body: dict[str, object] = {
            "verdict": "pass", "summary": f"{tool}: {check or 'as declared'}", "next": "go on",
            "grade": "observed", "check": check,
            "sides": {record.name: record for record in sides}, "models": {record.name: record for record in models},
            "figures": {"comparisons": THREE_LEGS, "ratio_low": 0.9, "nonce": run.id},
            "coverage": Coverage(exercised=("decode",)),
        }  # fmt: skip
        finding = Finding.model_validate(body | changes)
        found = self.store.finish_run(run.id, "finished", finding=finding)
        assert found is not None
        return found

    def meet(self, need: Need, **changes: object) -> Evidence:
        """Evidence that meets a need today (unless `changes` spoil it)."""
        records = [self.today.sides[role].record for role in need.sides]
        models = [self.today.models[need.model].record] if need.model else []
        actor = BASELINE if need.sides == ("baseline",) else CONSISTENCY
        return self.evidence(need.tool, need.check, **{"sides": records, "models": models, "actor": actor, **changes})

    def meet_gate(self, gate: str, *but: str, **changes: object) -> dict[str, Evidence]:
        needs = [need for need in BY_ID[gate].needs if need.key not in but and need.tool in self.today.tools]
        return {need.key: self.meet(need, **changes) for need in needs}

    def submit(self, gate: str, actor: Actor | None = None) -> Submission:
        role = BASELINE if gate == "C1" else CONSISTENCY
        return submit(self.store, gate, self.today, actor or role)

    def propose(self, **changes: object) -> Proposed:
        tuning = self.evidence("ab_benchmark", "candidates", actor=BASELINE, sides=[SIDES["baseline"]])
        return propose(self.store, self.today, BASELINE, **{"tuning": [tuning.id], "workload": "w", **changes})

    # what people do

    def vote(
        self, gate: str, choice: str = "approve", reason: str = "", by: str = "rosa", needs: tuple[str, ...] = ()
    ) -> None:
        decision = decisions.decision_for(self.store, gate, self.today, choice, reason, needs)
        decisions.record(self.store, pretty(decision), decisions.sign_with(decision, self.keys[by]), self.today)

    def freeze(self) -> None:
        self.meet_gate("C1")
        self.propose()
        self.submit("C1")
        self.vote("C1")

    def walk(self, last: str) -> None:
        """Passes every gate up to `last`, with real evidence rows, submissions and signatures."""
        for gate in GATE_IDS[: GATE_IDS.index(last) + 1]:
            if gate == "C1":
                self.freeze()
                continue
            if BY_ID[gate].signature == "opens":
                self.vote(gate)
            self.meet_gate(gate)
            self.submit(gate)
            if BY_ID[gate].signature == "closes":
                self.vote(gate)

    # what everybody sees

    @property
    def view(self) -> LedgerView:
        return LedgerView(self.store)

    @property
    def board(self) -> dict[str, GateStatus]:
        return self.view.board(self.today)

    def state(self, gate: str) -> str:
        return self.board[gate].state

    def states(self) -> dict[str, str]:
        return {gate: status.state for gate, status in self.board.items()}

    def missing(self, gate: str) -> dict[str, str]:
        return {item.key: item.why for item in self.board[gate].missing}


@pytest.fixture(scope="session")
def ssh_keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("keys")
    for name in ("rosa", "sam", "mallory", "runner"):
        path = folder / name
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path)],
            check=True,
            stdin=subprocess.DEVNULL,
        )
    return {name: folder / name for name in ("rosa", "sam", "mallory", "runner")}


def signer_line(name: str, key: Path) -> str:
    return f"{name} {key.with_suffix('.pub').read_text(encoding='utf-8').strip()}\n"


@pytest.fixture(scope="session")
def signers(ssh_keys: dict[str, Path]) -> str:
    """The reviewers file of these tests: two people, and a machine that may vouch for bundles."""
    lines = (
        signer_line(name, ssh_keys[key]) for name, key in (("rosa", "rosa"), ("sam", "sam"), ("runner:ci", "runner"))
    )
    return "".join(lines)


@pytest.fixture(scope="session")
def new_world(ssh_keys: dict[str, Path]) -> Iterator[Callable[[Path, str], World]]:
    opened: list[Store] = []

    def make(path: Path, signers: str) -> World:
        clock = Clock()
        store = Store.open(path, clock=clock)
        opened.append(store)
        if signers:
            reviewers.found(store, signers, "person:rosa")
        return World(store, ssh_keys, clock)

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def world(new_world: Callable[[Path, str], World], tmp_path: Path, signers: str) -> Iterator[World]:
    made = new_world(tmp_path / "ledger.db", signers)
    yield made
    made.store.close()


DERIVING = [item for item in TRIGGERS if "AFTER INSERT" in item.sql]
"""The triggers that fill derived tables: a forger who knows the schema lets them do their work."""


class Forger:
    """Somebody with a shell under the same user id: edits the file by hand, and knows how the chain is made."""

    COLUMNS = ("seq", "at", "kind", "subject", "actor", "body", "prev_hash", "hash")

    def __init__(self, world: World) -> None:
        self.world = world
        self.path = world.store.ledger.path
        world.store.ledger.rows("PRAGMA wal_checkpoint(TRUNCATE)")

    def rows(self) -> list[dict[str, object]]:
        with closing(sqlite3.connect(self.path)) as connection:
            found = connection.execute(f"SELECT {', '.join(self.COLUMNS)} FROM entries ORDER BY seq").fetchall()
        return [dict(zip(self.COLUMNS, row, strict=True)) for row in found]

    def rewrite(self, change: Callable[[list[dict[str, object]]], object], *, recompute: bool = True) -> None:
        """Replaces every row by what `change` makes of it; with `recompute`, numbers and hashes are right again."""
        rows = self.rows()
        change(rows)
        if recompute:
            self._chain(rows)
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            drop_objects(connection)
            connection.execute("DELETE FROM entries")
            for derived in ("running", "evidence_keys"):
                connection.execute(f"DELETE FROM {derived}")
            marks = ", ".join("?" * len(self.COLUMNS))
            for trigger in DERIVING:
                connection.execute(trigger.sql)
            for row in rows:
                connection.execute(f"INSERT INTO entries VALUES ({marks})", [row[name] for name in self.COLUMNS])
            drop_objects(connection)
            create_objects(connection)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @staticmethod
    def _chain(rows: list[dict[str, object]]) -> None:
        previous = "0" * 64
        for seq, row in enumerate(rows, 1):
            row |= {"seq": seq, "prev_hash": previous}
            body = str(row["body"]).encode()
            row["hash"] = previous = row_hash(seq, row["at"], row["kind"], row["subject"], row["actor"], body, previous)

    def edit(self, row: dict[str, object], change: Callable[[dict[str, object]], object]) -> None:
        """Changes a row's body, in the canonical form the store writes."""
        body = json.loads(str(row["body"]))
        change(body)
        row["body"] = canonical(body)

    def last(self, rows: list[dict[str, object]], kind: str, **fields: object) -> dict[str, object]:
        def fits(row: dict[str, object]) -> bool:
            body = json.loads(str(row["body"]))
            return row["kind"] == kind and all(body.get(name) == value for name, value in fields.items())

        return next(row for row in reversed(rows) if fits(row))

    def append(self, kind: str, subject: str, body: dict[str, object], actor: str) -> int:
        """A row of any kind with the chain continued, past every check of the store."""
        seq = len(self.rows()) + 1
        at = self.world.clock()
        new = {"at": at, "kind": kind, "subject": subject, "actor": actor, "body": canonical(body)}
        self.rewrite(lambda rows: rows.append(dict(new)))
        return seq


@pytest.fixture
def forger(world: World) -> Forger:
    return Forger(world)
