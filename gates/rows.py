"""Bodies of the chain rows that gates write, and the messages that people sign."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Final, Literal

from pydantic import Field, JsonValue, StringConstraints

from bitgate.store.records import Grade, ModelRecord, Record, SideRecord, Verdict

NAMESPACE: Final = "bitgate"
Hex64 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
GateId = Annotated[str, StringConstraints(pattern=r"^C(10|[0-9])$")]
State = Literal["locked", "open", "passed", "failed", "stale", "awaiting"]
Choice = Literal["approve", "reject", "waive"]
Role = Literal["baseline", "consistency", "observer"]
Text = Annotated[str, StringConstraints(max_length=4000)]


def digest_of(body: object) -> str:
    """SHA-256 of canonical JSON, 64 hex digits."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


class HeadRef(Record):
    """A row of the chain, and so everything before it."""

    seq: int
    hash: Hex64


class EvidenceRef(Record):
    need: str
    id: str
    row: Hex64 = Field(description="Hash of the evidence's chain row: the reference cannot be given other content")
    verdict: Verdict
    grade: Grade


class Subject(Record):
    """Exactly what a gate's pass or a person's vote is about."""

    gate: GateId
    criterion: Hex64
    evidence: tuple[EvidenceRef, ...] = ()
    sides: dict[str, str] = {}
    models: dict[str, str] = {}
    policy: dict[str, JsonValue] = {}
    baseline: str | None = None
    missing: tuple[str, ...] = Field(default=(), description="Keys that are not met; a waiver is about exactly these")
    waived: tuple[str, ...] = ()
    prerequisites: dict[str, str] = Field(default={}, description="Gate -> digest of what it passed on")

    @property
    def digest(self) -> str:
        return digest_of(self.model_dump(mode="json"))


class Binding(Record):
    """What a recorded pass depends on, whole, so that a change can be named and not only noticed."""

    criterion: Hex64
    sides: dict[str, SideRecord] = {}
    models: dict[str, ModelRecord] = {}
    policy: dict[str, JsonValue] = {}
    baseline: str | None = None


class GateRow(Record):
    """kind `gate`: one submission."""

    gate: GateId
    state: State
    subject: Subject
    binding: Binding
    missing: tuple[str, ...] = ()
    as_of: HeadRef


class Decision(Record):
    """What a reviewer signs for a gate: their choice about exactly this subject, on exactly this history."""

    kind: Literal["decision"] = "decision"
    version: Literal[1] = 1
    choice: Choice
    reason: Text = ""
    gate: GateId
    says: str = Field(description="The criterion as the reviewer saw it")
    subject: Subject
    subject_digest: Hex64
    head: HeadRef
    reviewers: Hex64 = Field(description="Digest of the reviewer set in force")


class ReviewerChange(Record):
    """What a reviewer signs to change the reviewer set."""

    kind: Literal["reviewers"] = "reviewers"
    version: Literal[1] = 1
    allowed_signers: str
    previous: Hex64
    head: HeadRef


class Signed(Record):
    """A signed message, kept byte for byte."""

    message: str
    signature: str
    signer: str


class ReviewersRow(Record):
    """kind `reviewers`. The first row of the chain has no `change`; every later one must."""

    allowed_signers: str
    change: Signed | None = None


class TokenRow(Record):
    """kind `token`. The token itself is shown once and never stored."""

    name: str
    role: Role
    digest: Hex64
    revoked: bool = False


class Manifest(Record):
    """A baseline, whole: what is measured against, how it was tuned, and on what it was found."""

    version: int
    sides: dict[str, SideRecord]
    models: dict[str, ModelRecord] = {}
    workload: str = ""
    workload_digest: str = ""
    provenance: tuple[str, ...] = Field(default=(), description="Evidence ids of check_provenance")
    tuning: tuple[str, ...] = Field(default=(), description="Evidence ids of the A/B runs between candidates")
    noise_floor: tuple[str, ...] = Field(default=(), description="Evidence ids of the A/A run")
    breakdown: tuple[str, ...] = ()
    note: Text = ""

    @property
    def digest(self) -> str:
        body = self.model_dump(mode="json")
        for side in body["sides"].values():
            side.pop("volatile")
        return digest_of(body)


class BaselineRow(Record):
    """kind `baseline`: a proposal. It is frozen by a vote on C1 that names its digest, and by nothing else."""

    manifest: Manifest
    digest: Hex64


def pretty(message: Record) -> str:
    """The one text form that is signed: sorted keys, two spaces, a newline at the end."""
    return (
        json.dumps(message.model_dump(mode="json"), sort_keys=True, indent=2, ensure_ascii=True, allow_nan=False) + "\n"
    )
