"""The closed table of what a ledger row can be. A new kind is one row here."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel

from bitgate.store.errors import Refused
from bitgate.store.records import Evidence, RegisteredModel, RunFinished, RunStarted


@dataclass(frozen=True)
class Kind:
    """`body` is checked before a row is written, where the store knows its shape; `through` is the only way in."""

    name: str
    meaning: str
    subject: str
    body: type[BaseModel] | None = None
    through: str = "append"


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("run_started", "a tool began to run", "run id", RunStarted, "start_run"),
        Kind("run_finished", "a run ended, in whatever state", "run id", RunFinished, "finish_run"),
        Kind("evidence", "what a finished run showed", "evidence id", Evidence, "finish_run"),
        Kind("model", "a model or a slice was registered", "model name", RegisteredModel),
        Kind("reviewers", "the people who may sign", "reviewer set"),
        Kind("signature", "a person signed a decision or a waiver", "what was signed"),
        Kind("baseline", "a baseline was proposed, frozen or replaced", "baseline version"),
        Kind("gate", "a gate was evaluated", "gate"),
        Kind("token", "a connection token was added or revoked; only its digest is kept", "token id"),
        Kind("import", "evidence made elsewhere was taken in, attributed", "bundle digest"),
    )
}


def kind_for(name: str, *, through: str) -> Kind:
    kind = KINDS.get(name)
    if kind is None:
        raise Refused("unknown_kind", f"kind: got {name!r}; allowed are {', '.join(sorted(KINDS))}")
    if kind.through != through:
        raise Refused("wrong_way_in", f"kind: {name!r} rows are written by {kind.through}(), not by {through}()")
    return kind
