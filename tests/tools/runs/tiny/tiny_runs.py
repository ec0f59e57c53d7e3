"""Runs of the tiny tool, from start to end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from bitgate.store import Store
from bitgate.store.records import Evidence, Run
from bitgate.tools.config.project import Project
from bitgate.tools.runs.control import run_folder, start_run, wait_run


@dataclass(frozen=True)
class Ended:
    """A run that has ended, its evidence, and where its files are."""

    run: Run
    evidence: Evidence | None
    folder: Path

    @property
    def error(self) -> str:
        assert self.run.error is not None
        return self.run.error


def run_to_end(project: Project, *, wait_s: float = 60, **request: Any) -> Ended:
    async def to_end() -> Run:
        return await wait_run(project, (await start(project, **request)).id, wait_s)

    return ended(project, anyio.run(to_end))


async def start(project: Project, **request: Any) -> Run:
    from tiny_tool import TinyRequest

    return await start_run(project, "tiny", TinyRequest(**request), actor="tester")


def ended(project: Project, run: Run) -> Ended:
    with Store.open(project.ledger) as store:
        evidence = store.get_evidence(run.evidence_id) if run.evidence_id else None
    return Ended(run, evidence, run_folder(project, run.id).path)
