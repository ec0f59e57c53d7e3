"""What a call answers, and how it is kept under 10 kB: whatever is cut is named, with a pointer to the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from bitgate.server.sanitise import Cleaner, shrink, wire_size
from bitgate.store.records import ArtifactRef, Evidence, Grade, Reason, Run, RunState, Verdict

MAX_WIRE: Final = 9_600
"""Bytes of a result, structured and text together; the protocol's own envelope needs a little more."""


class Answer(BaseModel):
    """Every answer says in one sentence what it is and what to do next, inside the structured content."""

    model_config = ConfigDict(extra="forbid")

    summary: str = Field(description="One sentence for the reader")
    next: str = Field(description="What to do now, often as a call")
    non_finite: list[str] = Field(default=[], description="Paths of numbers that are NaN or infinite, given as null")
    cut: str | None = Field(default=None, description="Where the rest is, when something was left out to stay small")


class ArtifactLink(BaseModel):
    name: str
    uri: str
    size: int
    media_type: str


class Progress(BaseModel):
    done: float
    total: float | None
    message: str


class RunAnswer(Answer):
    """A run, as far as it is."""

    run_id: str
    tool: str
    state: RunState
    check: str | None = None
    verdict: Verdict | None = Field(default=None, description="Only a finished run has one")
    grade: Grade | None = None
    reasons: list[Reason] = []
    figures: dict[str, JsonValue] = {}
    coverage: dict[str, JsonValue] = {}
    sides: dict[str, str] = Field(default={}, description="Side -> side digest")
    evidence_id: str | None = None
    artifacts: list[ArtifactLink] = []
    progress: Progress | None = None
    error_code: str | None = None
    error: str | None = None


class EvidenceItem(BaseModel):
    id: str
    tool: str
    check: str | None
    verdict: Verdict
    grade: Grade
    reasons: list[str]
    summary: str
    finished_at: str


class EvidenceAnswer(Answer):
    """One piece of evidence, or a page of them, newest first."""

    kind: Literal["one", "page"]
    evidence: dict[str, JsonValue] | None = None
    items: list[EvidenceItem] = []
    next_before: str | None = Field(default=None, description="Pass as `before` for the next page; null at the end")


def run_answer(run: Run, evidence: Evidence | None, progress: Progress | None = None) -> RunAnswer:
    """The answer for a run in any state."""
    base: dict[str, Any] = {"run_id": run.id, "tool": run.tool, "state": run.state}
    if evidence is not None:
        return RunAnswer(**base, **_of_evidence(evidence))
    if run.state == "running":
        return _running(run, progress, base)
    summary = f"{run.tool} {run.id} {run.state.replace('_', ' ')}, without a verdict: {run.error or 'no more is known'}"
    todo = f"read bitgate://runs/{run.id}/log for what its ranks wrote; then call {run.tool} again"
    return RunAnswer(**base, summary=summary, next=todo, error=run.error, error_code=run.error_code)


def _running(run: Run, progress: Progress | None, base: dict[str, Any]) -> RunAnswer:
    where = f": {progress.message}" if progress and progress.message else ""
    todo = f"get_run(run_id='{run.id}', wait_s=50), or cancel_run(run_id='{run.id}')"
    return RunAnswer(**base, summary=f"{run.tool} {run.id} is running{where}", next=todo, progress=progress)


def _of_evidence(evidence: Evidence) -> dict[str, Any]:
    coverage = evidence.coverage.model_dump(mode="json", exclude_defaults=True)
    return {
        "summary": evidence.summary,
        "next": evidence.next,
        "check": evidence.check,
        "verdict": evidence.verdict,
        "grade": evidence.grade,
        "reasons": list(evidence.reasons),
        "figures": evidence.figures,
        "coverage": coverage,
        "sides": {name: side.digest for name, side in evidence.sides.items()},
        "evidence_id": evidence.id,
        "artifacts": [artifact_link(ref) for ref in evidence.artifacts],
    }


def artifact_link(ref: ArtifactRef) -> ArtifactLink:
    return ArtifactLink(
        name=ref.name, uri=f"bitgate://artifacts/{ref.digest}", size=ref.size, media_type=ref.media_type
    )


def evidence_item(evidence: Evidence) -> EvidenceItem:
    return EvidenceItem(
        id=evidence.id,
        tool=evidence.tool,
        check=evidence.check,
        verdict=evidence.verdict,
        grade=evidence.grade,
        reasons=[reason.code for reason in evidence.reasons],
        summary=evidence.summary,
        finished_at=evidence.finished_at,
    )


def fitted(answer: Answer, rest: str) -> dict[str, JsonValue]:
    """The answer as clean JSON under the size limit; `rest` says where the whole of it is."""
    cleaner = Cleaner()
    body = cleaner.clean(answer.model_dump(mode="python", exclude_defaults=False))
    assert isinstance(body, dict)
    compact = {key: value for key, value in body.items() if value not in (None, [], {}) or key in ("verdict",)}
    if cleaner.non_finite:
        compact["non_finite"] = list(cleaner.non_finite[:20])
    return next(small for small in _smaller(compact, rest) if wire_size(small) <= MAX_WIRE)


def _smaller(body: dict[str, JsonValue], rest: str) -> Iterator[dict[str, JsonValue]]:
    yield body
    for items, chars in ((20, 1000), (10, 400), (5, 300), (3, 200), (2, 120), (1, 80)):
        shrunk = {key: shrink(value, items, chars) if _may_shrink(key) else value for key, value in body.items()}
        yield {**shrunk, "cut": rest}
    kept = {key: shrink(body[key], 1, 300) for key in _ALWAYS if key in body}
    yield {**kept, "cut": rest}


_ALWAYS: Final = ("summary", "next", "kind", "run_id", "tool", "state", "check", "verdict", "evidence_id", "error_code")
_PAGED: Final = ("items",)


def _may_shrink(key: str) -> bool:
    """Pages are made to fit by their size, not by cutting lines out of them."""
    return key not in (*_ALWAYS[2:], *_PAGED)
