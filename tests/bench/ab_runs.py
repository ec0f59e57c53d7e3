"""Real runs of ab_benchmark on vLLM, and what bitgate's own processes take of a core while its turns are served."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import anyio

sys.path.insert(0, str(Path(__file__).parents[1] / "kits"))

from vllm_project import made_project, vllm_side, workload

from bitgate.store import Store
from bitgate.store.records import Evidence
from bitgate.tools.ab.known import Band, Freeze, LedgerFacts
from bitgate.tools.ab_benchmark import AbRequest
from bitgate.tools.config.project import Project
from bitgate.tools.runs.control import run_folder, start_run, wait_run
from bitgate.tools.runs.lease import holder
from bitgate.tools.runs.processes import marked_run

ROOM = 512
KERNELS = 'backends = { "attention*" = "*", "kernels*" = "*", "operators*" = "*" }'
"""What batch invariance changes, and the side therefore declares."""
EVERY_S = 1.0


def vllm_project(root: Path, python: str) -> Project:
    """vLLM as it comes, and batch-invariant."""
    baseline = vllm_side("baseline", python, room=ROOM)
    rollout = vllm_side("rollout", python, room=ROOM, options={"batch_invariant": True}, expect=KERNELS)
    return made_project(root, python, baseline, rollout, workload(64, 32, (10, 100)))


@dataclass
class Costs:
    """Processor seconds by process, as seen again and again while turns that are measured are served."""

    run_id: str
    lease: Path
    supervisor: int = 0
    seen: list[tuple[float, dict[int, float]]] = field(default_factory=list)

    async def look(self, _done: float, _total: float | None, message: str) -> None:
        """To be told of progress, which comes five times a second."""
        if not message.startswith("measured") or (self.seen and time.monotonic() - self.seen[-1][0] < EVERY_S):
            return
        self.supervisor = self.supervisor or holder(self.lease) or 0
        pids = (self.supervisor, *marked_run(self.run_id))
        self.seen.append((time.monotonic(), {pid: processor_seconds(pid) for pid in pids}))

    def shares(self) -> dict[str, float]:
        """Of a core: the supervisor, and whatever else the run started but its two engines, the busiest."""
        (began, first), (ended, last) = self.seen[0], self.seen[-1]
        used = {pid: (last[pid] - first[pid]) / (ended - began) for pid in first.keys() & last.keys()}
        supervisor = used.pop(self.supervisor)
        return {"the supervisor": supervisor, "the guards": sum(sorted(used.values())[:-2])}


def processor_seconds(pid: int) -> float:
    """Of all threads that live; the scheduler counts nanoseconds (Documentation/scheduler/sched-stats)."""
    total = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):
            total += int(path.read_text(encoding="ascii").split()[0])
    return total / 1e9


def ran(project: Project, known: LedgerFacts | None = None, **request: Any) -> tuple[Evidence, Costs]:
    async def to_end() -> tuple[str, Costs]:
        facts = (known or LedgerFacts(read=True)).model_dump(mode="json")
        run = await start_run(project, "ab_benchmark", AbRequest(**request), actor="bench", known=facts)
        costs = Costs(run.id, run_folder(project, run.id).lease)
        run = await wait_run(project, run.id, None, costs.look)
        if run.evidence_id is None:
            raise RuntimeError(run.error)
        return run.evidence_id, costs

    evidence_id, costs = anyio.run(to_end)
    with Store.open(project.ledger) as store:
        return store.get_evidence(evidence_id), costs


def as_frozen(evidence: Evidence) -> LedgerFacts:
    """A freeze of the baseline as its A/A run saw it."""
    [digest] = {record.digest for record in evidence.sides.values()}
    figures: dict[str, Any] = dict(evidence.figures)
    rates = [figures[f"baseline ({arm})"]["tokens_per_s"] for arm in ("a", "b")]
    middle, lowest = median(rate["median"] for rate in rates), min(rate["lowest"] for rate in rates)
    band = Band(evidence_id=evidence.id, workload=figures["workload"], median=middle, lowest=lowest)
    return LedgerFacts(read=True, freeze=Freeze(version=1, manifest="0" * 64, digests={"baseline": digest}, band=band))
