"""A gate's pass as an in-toto Statement v1 with an SLSA verification summary, for supply-chain tools of others."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from bitgate.gates.spec import Gate
from bitgate.gates.status import GateStatus

STATEMENT: Final = "https://in-toto.io/Statement/v1"
PREDICATE: Final = "https://slsa.dev/verification_summary/v1"
VERIFIER: Final = "https://github.com/bitgate/bitgate"


class Subject(BaseModel):
    name: str
    digest: dict[str, str]


class Statement(BaseModel):
    """https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md"""

    model_config = ConfigDict(populate_by_name=True)

    type: str = Field(default=STATEMENT, serialization_alias="_type")
    subject: list[Subject]
    predicate_type: str = Field(default=PREDICATE, serialization_alias="predicateType")
    predicate: dict[str, JsonValue]

    def text(self) -> str:
        return self.model_dump_json(by_alias=True, indent=2) + "\n"


def statement(status: GateStatus) -> Statement | None:
    """The statement of a gate that is passed now; None for any other."""
    if status.state != "passed" or status.passed is None:
        return None
    recorded = status.passed
    return Statement(subject=_subjects(status), predicate=_predicate(status, recorded.at, recorded.hash, recorded.seq))


def _subjects(status: GateStatus) -> list[Subject]:
    """What the pass is about: sides, models, and the frozen baseline, each by a digest."""
    subject = status.subject
    found = [Subject(name=f"side/{role}", digest={"sha256": digest}) for role, digest in subject.sides.items()]
    for role, model in status.binding.models.items():
        found.append(Subject(name=f"model/{role}/{model.name}", digest={"sha256": _hex(model.weights_digest)}))
    if subject.baseline:
        found.append(Subject(name="baseline", digest={"sha256": subject.baseline}))
    return found or [Subject(name=f"gate/{status.gate.id}", digest={"sha256": status.gate.digest})]


def _hex(digest: str) -> str:
    return digest.rpartition(":")[2]


def _predicate(status: GateStatus, at: str, row: str, seq: int) -> dict[str, JsonValue]:
    waived: list[JsonValue] = [f"{item.key}: {vote.decision.reason}" for item, vote in status.waived]
    signers = {s.vote.signer for s in status.votes if s.counts and s.vote.choice == "approve"}
    signed_by: list[JsonValue] = list(sorted(signers))
    return {
        "verifier": {"id": VERIFIER},
        "timeVerified": at,
        "resourceUri": f"bitgate://gates/{status.gate.id}",
        "policy": {"uri": f"bitgate://gates/{status.gate.id}", "digest": {"sha256": status.gate.digest}},
        "inputAttestations": _inputs(status),
        "verificationResult": "PASSED",
        "verifiedLevels": [level(status.gate)],
        "bitgate": {
            "criterion": status.gate.criterion,
            "row": {"seq": seq, "sha256": row},
            "waived": waived,
            "signedBy": signed_by,
        },
    }


def level(gate: Gate) -> str:
    return f"BITGATE_{gate.id}"


def _inputs(status: GateStatus) -> list[JsonValue]:
    return [
        {"uri": f"bitgate://evidence/{match.seen.evidence.id}", "digest": {"sha256": match.seen.row}}
        for match in status.matches
        if match.seen
    ]
