"""What the ledger stores, as types: runs, evidence, and what evidence depends on.

DESIGN words: a *run* is one execution of a tool; *evidence* is the immutable record of a finished run.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

Verdict = Literal["pass", "fail", "invalid", "inconclusive"]
Grade = Literal["observed", "attested"]
RunState = Literal["running", "finished", "failed", "timed_out", "cancelled", "lost"]


class Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Reason(Record):
    code: str = Field(description="A key of the reason table (bitgate.tools.reasons)")
    detail: str = Field(description="What was seen, in one sentence")


class ArtifactRef(Record):
    name: str
    digest: str = Field(description="BLAKE3 of the bytes, 64 hex digits")
    size: int
    media_type: str


class SideRecord(Record):
    """One side as it ran. `digest` covers engine, options, axes, allow-listed env and `stable`; never `volatile`."""

    name: str
    engine: str
    digest: str
    options: dict[str, JsonValue] = {}
    axes: tuple[str, ...] = ()
    env: dict[str, str] = {}
    configured: bool = Field(default=True, description="False when the call tried options that are not configured")
    stable: dict[str, JsonValue] = {}
    volatile: dict[str, JsonValue] = {}


class ModelRecord(Record):
    """Model identity: architecture config + root weights digest; each update is a new weight version."""

    name: str
    architecture_digest: str
    weights_digest: str
    weight_version: int = 0
    slice_of: str | None = None


class Coverage(Record):
    """Which declared axes a check exercised. An axis that was not exercised makes the verdict inconclusive."""

    exercised: tuple[str, ...] = ()
    not_applicable: dict[str, str] = {}
    missing: dict[str, str] = {}


class Finding(Record):
    """What a tool concludes; the supervisor turns it into evidence."""

    verdict: Verdict
    reasons: tuple[Reason, ...] = ()
    summary: str
    next: str
    figures: dict[str, JsonValue] = {}
    grade: Grade
    check: str | None = None
    sides: dict[str, SideRecord] = {}
    models: dict[str, ModelRecord] = {}
    coverage: Coverage = Coverage()
    self_test: dict[str, JsonValue] = {}
    artifacts: tuple[ArtifactRef, ...] = ()


class Evidence(Finding):
    id: str
    run_id: str
    tool: str
    request: dict[str, JsonValue]
    started_at: str
    finished_at: str


class Run(Record):
    id: str
    tool: str
    state: RunState
    request: dict[str, JsonValue]
    actor: str
    started_at: str
    finished_at: str | None = None
    error: str | None = None
    error_code: str | None = None
    evidence_id: str | None = None


class RunStarted(Record):
    """Body of a `run_started` row."""

    tool: str
    request: dict[str, JsonValue]


class RunFinished(Record):
    """Body of a `run_finished` row."""

    state: RunState
    error: str | None = None
    error_code: str | None = None
    evidence_id: str | None = None


class RegisteredModel(ModelRecord):
    """Body of a `model` row: where the checkpoint lies, and the evidence of the run that made it."""

    path: str
    evidence_id: str | None = None
    layers: tuple[int, ...] = Field(default=(), description="Of a slice: the numbers its layers have in the full model")
    source_layout: str | None = Field(default=None, description="Of a slice: layout digest of what it was cut from")
