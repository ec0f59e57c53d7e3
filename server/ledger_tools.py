"""Tools that only look at the ledger or end a run; they make no evidence. One row of `LEDGER_TOOLS` each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field, JsonValue, TypeAdapter, model_validator

from bitgate.server import calls
from bitgate.server.answers import (
    MAX_WIRE,
    Answer,
    EvidenceAnswer,
    EvidenceItem,
    RunAnswer,
    evidence_item,
    fitted,
)
from bitgate.server.progress import OnProgress
from bitgate.server.sanitise import shorten, wire_size
from bitgate.server.session import Session
from bitgate.store.records import Evidence, Verdict
from bitgate.tools.registry import ToolRequest

RunId = Annotated[str, Field(pattern=r"^run_[0-9a-z]{20}$", description="A run's id, such as run_… of a started run")]
EvidenceId = Annotated[str, Field(pattern=r"^ev_[0-9a-z]{20}$")]
Wait = Annotated[float, Field(ge=0, le=55, description="Seconds to wait for the run's end")]


class GetRun(ToolRequest):
    run_id: RunId
    wait_s: Wait = 50.0


class CancelRun(ToolRequest):
    run_id: RunId


class GetEvidence(ToolRequest):
    evidence_id: EvidenceId | None = Field(default=None, description="One piece of evidence, whole; leave out to list")
    tool: str | None = Field(default=None, description="List only this tool's")
    check: str | None = Field(default=None, description="List only this check's, such as batch")
    verdict: Verdict | None = Field(default=None, description="List only this verdict")
    limit: int = Field(default=20, ge=1, le=100, description="At most so many; a page also ends at 10 kB")
    before: EvidenceId | None = Field(default=None, description="`next_before` of the page before")

    @model_validator(mode="after")
    def _one_or_list(self) -> GetEvidence:
        if self.evidence_id and (self.tool or self.check or self.verdict or self.before):
            raise ValueError("evidence_id names one piece; leave out tool, check, verdict and before")
        return self


async def get_run(session: Session, request: GetRun, on_progress: OnProgress | None) -> dict[str, JsonValue]:
    answer = await calls.wait(session, request.run_id, request.wait_s, on_progress)
    return fitted(answer, calls.rest_of(answer))


async def cancel_run(session: Session, request: CancelRun, on_progress: OnProgress | None) -> dict[str, JsonValue]:
    answer = await calls.cancel(session, request.run_id)
    return fitted(answer, calls.rest_of(answer))


async def get_evidence(session: Session, request: GetEvidence, on_progress: OnProgress | None) -> dict[str, JsonValue]:
    if request.evidence_id is not None:
        return _one(session.store.get_evidence(request.evidence_id))
    found = session.store.list_evidence(
        tool=request.tool,
        check=request.check,
        verdict=request.verdict,
        limit=request.limit + 1,
        before=request.before,
    )
    return _page(found[: request.limit], more=len(found) > request.limit)


_JSON: Final = TypeAdapter(dict[str, JsonValue])


def _one(evidence: Evidence) -> dict[str, JsonValue]:
    body = _JSON.validate_python(evidence.model_dump(mode="json"))
    answer = EvidenceAnswer(kind="one", summary=evidence.summary, next=evidence.next, evidence=body)
    return fitted(answer, f"the whole is bitgate://evidence/{evidence.id}")


def _page(found: list[Evidence], *, more: bool) -> dict[str, JsonValue]:
    """As many of the found as fit one answer; the rest is the next page."""
    items = [_short(evidence_item(evidence)) for evidence in found]
    kept = _fitting(items)
    before = items[kept - 1].id if items and (more or kept < len(items)) else None
    todo = (
        f"get_evidence(evidence_id='{items[0].id}') for one whole"
        if items
        else "run a tool, or list with other filters"
    )
    if before:
        todo += f"; get_evidence(before='{before}', same filters) for the next page"
    summary = f"{kept} pieces of evidence, newest first" if items else "no evidence fits these filters"
    answer = EvidenceAnswer(kind="page", summary=summary, next=todo, items=items[:kept], next_before=before)
    return fitted(answer, todo)


def _short(item: EvidenceItem) -> EvidenceItem:
    return item.model_copy(update={"summary": shorten(item.summary, 160), "reasons": item.reasons[:3]})


def _fitting(items: list[EvidenceItem]) -> int:
    used, room = 0, MAX_WIRE - 1200
    for count, item in enumerate(items):
        used += wire_size(item.model_dump(mode="json"))
        if used > room and count:
            return count
    return len(items)


@dataclass(frozen=True)
class LedgerTool:
    name: str
    title: str
    description: str
    request: type[ToolRequest]
    answer: type[Answer]
    run: Callable[[Session, Any, OnProgress | None], Awaitable[dict[str, JsonValue]]]
    read_only: bool = True


LEDGER_TOOLS: Final[Mapping[str, LedgerTool]] = {
    tool.name: tool
    for tool in (
        LedgerTool(
            "get_run",
            "Wait for a run",
            "State of a run, and its verdict once it is finished; waits up to wait_s for the end and reports progress. "
            "A run goes on whether or not anybody waits.",
            GetRun,
            RunAnswer,
            get_run,
        ),
        LedgerTool(
            "cancel_run",
            "End a run",
            "Ends a running run and everything it started, and waits until that is done. It gets no verdict.",
            CancelRun,
            RunAnswer,
            cancel_run,
            read_only=False,
        ),
        LedgerTool(
            "get_evidence",
            "Read the ledger",
            "One piece of evidence by id, or a page of the ledger, newest first, by tool, check and verdict. "
            "Evidence never changes; what it names as artifacts is bitgate://artifacts/DIGEST.",
            GetEvidence,
            EvidenceAnswer,
            get_evidence,
        ),
    )
}
