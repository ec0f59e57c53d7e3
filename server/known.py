"""What a tool must know of the ledger, read before its run starts and handed on as values (DESIGN 4)."""

from __future__ import annotations

from typing import Any, Final

from pydantic import JsonValue

from bitgate.gates.ledger import LedgerView
from bitgate.store.records import Evidence
from bitgate.store.store import Store
from bitgate.tools.ab.known import Band, BitPass, Freeze, LedgerFacts

LOOKED_AT: Final = 200


def known_to(tool: str, store: Store) -> dict[str, JsonValue]:
    """Empty for tools that need nothing of the ledger."""
    if tool != "ab_benchmark":
        return {}
    facts = LedgerFacts(read=True, freeze=_freeze(store), bit_passes=tuple(_bit_passes(store)))
    body: dict[str, JsonValue] = facts.model_dump(mode="json")
    return body


def _freeze(store: Store) -> Freeze | None:
    view = LedgerView(store)
    manifest = view.frozen
    if manifest is None:
        return None
    names = {record.name: record.digest for record in manifest.sides.values()}
    measured = [seen.evidence for item in manifest.noise_floor if (seen := view.source.by_id(item))]
    band = next((found for evidence in measured if (found := _band(evidence, names))), None)
    return Freeze(version=manifest.version, manifest=manifest.digest, digests=names, band=band)


def _band(evidence: Evidence, names: dict[str, str]) -> Band | None:
    """Speeds of the frozen side in its A/A run; None where the evidence does not hold them."""
    rates = [
        figures["tokens_per_s"]
        for label, figures in evidence.figures.items()
        if isinstance(figures, dict) and label.split(" ")[0] in names and isinstance(figures.get("tokens_per_s"), dict)
    ]
    numbers = [
        {k: float(v) for k, v in rate.items() if isinstance(v, int | float)} for rate in rates if isinstance(rate, dict)
    ]
    whole: list[dict[str, Any]] = [rate for rate in numbers if {"median", "lowest"} <= rate.keys()]
    if not whole:
        return None
    return Band(
        evidence_id=evidence.id,
        workload=str(evidence.figures.get("workload", "")),
        median=sum(rate["median"] for rate in whole) / len(whole),
        lowest=min(rate["lowest"] for rate in whole),
    )


def _bit_passes(store: Store) -> list[BitPass]:
    found = store.list_evidence(tool="run_compare", check="rollout_vs_trainer", verdict="pass", limit=LOOKED_AT)
    return [item for evidence in found if evidence.grade == "observed" for item in _passes_of(evidence)]


def _passes_of(evidence: Evidence) -> list[BitPass]:
    """One for each side of the evidence with the model that it had resident."""
    return [
        BitPass(
            evidence_id=evidence.id,
            finished_at=evidence.finished_at,
            side_digest=record.digest,
            architecture_digest=model.architecture_digest,
            weights_digest=model.weights_digest,
        )
        for name, record in evidence.sides.items()
        if record.configured and (model := evidence.models.get(name))
    ]
