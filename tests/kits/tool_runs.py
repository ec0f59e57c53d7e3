"""A tool's run as the product starts it, waited for to its end: for tests on real engines."""

from __future__ import annotations

from collections.abc import Mapping

import anyio
from pydantic import JsonValue

from bitgate.store import Store
from bitgate.store.records import Evidence
from bitgate.tools.config.project import Project
from bitgate.tools.registry import ToolRequest
from bitgate.tools.runs.control import start_run, wait_run


def evidence_of(
    project: Project,
    tool: str,
    request: ToolRequest,
    seconds: float = 500.0,
    known: Mapping[str, JsonValue] | None = None,
) -> Evidence:
    """What the run left in the ledger; a run without evidence fails the test with its error."""

    async def to_end() -> str:
        started = await start_run(project, tool, request, actor="tester", known=known)
        ended = await wait_run(project, started.id, seconds)
        assert ended.evidence_id is not None, ended.error
        return ended.evidence_id

    evidence_id = anyio.run(to_end)
    with Store.open(project.ledger) as store:
        return store.get_evidence(evidence_id)
