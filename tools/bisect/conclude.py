"""From what was watched and tried to the finding: where, which class, what was excluded and how, how much was seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

from bitgate.store.records import Reason
from bitgate.tools.bisect.cause import Localised
from bitgate.tools.bisect.graph import AFTER, BEFORE, Point, label, mandatory
from bitgate.tools.bisect.pairs import Pair
from bitgate.tools.reasons import reason

EXPERIMENTS = 24
TEXT = 260


@dataclass
class Outcome:
    """Everything one localisation found out. `pair` is the first that differs; None when none does."""

    hashed: dict[str, Localised] = field(default_factory=dict)
    pair: Pair | None = None
    found: Localised | None = None
    probe: dict[str, Any] = field(default_factory=dict)
    effects: dict[str, str] = field(default_factory=dict)
    unstable: dict[str, str] = field(default_factory=dict)
    unproved: dict[str, str] = field(default_factory=dict)
    replicas: dict[str, str] = field(default_factory=dict)
    """Point of a leg -> how the ranks that should hold the same bits differ."""
    weights: str | None = None
    repro: str | None = None
    hashed_bytes: int = 0
    recorded_bytes: int = 0


def reasons_of(outcome: Outcome) -> list[Reason]:
    found: list[Reason] = []
    for leg, why in outcome.unstable.items():
        found.append(reason("not_deterministic", f"{leg}: {why}"))
    for leg, why in outcome.effects.items():
        found.append(reason("observer_effect", f"{leg}: {why}"))
    for name, why in outcome.unproved.items():
        found.append(reason("axis_not_exercised", f"{name}: {why}"))
    for name, localised in outcome.hashed.items():
        if localised.missing:
            listed = ", ".join(label(p) for p in localised.missing[:6])
            more = f" and {len(localised.missing) - 6} more" if len(localised.missing) > 6 else ""
            found.append(reason("points_missing", f"{name}: {listed}{more} were not observed on both sides"))
    for where, why in outcome.replicas.items():
        found.append(reason("replicas_differ", f"{where}: {why}"))
    if outcome.weights is not None:
        found.append(reason("weights_differ", outcome.weights))
    if outcome.pair is not None:
        found.append(_cause(outcome))
        proof = outcome.probe.get("repro", {})
        if not proof.get("reproduces"):
            found.append(
                reason("repro_not_proved", f"exit codes {proof.get('exit_codes', 'none: no script was made')}")
            )
    return found


def _cause(outcome: Outcome) -> Reason:
    assert outcome.found is not None and outcome.pair is not None
    where, label_ = where_of(outcome), class_of(outcome)
    if label_ == "unknown":
        return reason("cause_unknown", f"{outcome.pair.label}: {where}; {why_unknown(outcome)}")
    return reason("first_cause_found", f"{outcome.pair.label}: {where}; {label_}: {outcome.probe.get('mechanism', '')}")


def where_of(outcome: Outcome) -> str:
    if outcome.found is None or outcome.found.cause is None:
        return "no operator with equal inputs and another output was observed"
    return label(outcome.found.cause.node.point)


def class_of(outcome: Outcome) -> str:
    return str(outcome.probe.get("class", "unknown"))


def why_unknown(outcome: Outcome) -> str:
    if outcome.found is None or outcome.found.cause is None:
        return "every point that differs has an input that differs or was not captured"
    cause = outcome.found.cause
    if cause.state == "input_not_captured":
        return f"its input {', '.join(map(label, cause.node.lost))} was not captured"
    return str(outcome.probe.get("failed") or outcome.probe.get("mechanism") or "no experiment showed why")


def summary_of(outcome: Outcome, verdict: str) -> str:
    if outcome.pair is None:
        points = sum(len(found.compared) for found in outcome.hashed.values())
        if verdict == "pass":
            return f"Clean: {points} points over {len(outcome.hashed)} pairs, every mandatory one observed and equal."
        return "Nothing that was observed differs, but not everything was observed."
    assert outcome.found is not None
    where, label_ = where_of(outcome), class_of(outcome)
    if label_ == "unknown":
        return f"{outcome.pair.label}: first different operator {where}; cause not known: {why_unknown(outcome)}."
    mechanism = str(outcome.probe.get("mechanism", ""))
    return f"{outcome.pair.label}: first different operator {where}, class {label_}: {mechanism}."


def figures_of(outcome: Outcome, side_names: tuple[str, ...]) -> dict[str, JsonValue]:
    figures: dict[str, JsonValue] = {
        "pairs": {name: _pair(found) for name, found in outcome.hashed.items()},
        "bytes_hashed": outcome.hashed_bytes,
        "bytes_recorded": outcome.recorded_bytes,
        "sides": list(side_names),
    }
    if outcome.pair is not None:
        figures["first_cause"] = _first_cause(outcome)
        figures["experiments"] = [
            {"experiment": str(e["experiment"])[:TEXT], "result": str(e["result"])[:TEXT]}
            for e in outcome.probe.get("experiments", [])[:EXPERIMENTS]
        ]
        figures["excluded"] = list(outcome.probe.get("excluded", []))
        figures["repro"] = {"folder": outcome.repro, **outcome.probe.get("repro", {})}
        figures["amplified"] = amplified(outcome.found)
    return figures


def _pair(found: Localised) -> dict[str, JsonValue]:
    statuses = Counter(found.status.values())
    wanted = mandatory(set(found.compared), found.layers)
    return {
        "points": len(found.compared),
        "points_different": len(found.different),
        "rows": max((len(seen.keys) for seen in found.compared.values()), default=0),
        "rows_not_computed_on_both": max(
            (seen.not_computed for p, seen in found.compared.items() if p[0] < AFTER), default=0
        ),
        "mandatory": len(wanted),
        "mandatory_missing": len(found.missing),
        "status": {
            "1:1": statuses["1:1"],
            "N:1": statuses["N:1"],
            "absorbed": statuses["absorbed"],
            "unmatched": statuses["unmatched"],
        },
        "unmatched": _listed([label(p) for p, s in found.status.items() if s == "unmatched"], 8),
    }


def _first_cause(outcome: Outcome) -> dict[str, JsonValue]:
    assert outcome.pair is not None and outcome.found is not None
    made: dict[str, JsonValue] = {"pair": outcome.pair.label, "point": where_of(outcome), "class": class_of(outcome)}
    probe, cause = outcome.probe, outcome.found.cause
    made |= {"mechanism": probe.get("mechanism") or why_unknown(outcome), "faulty_side": probe.get("faulty")}
    if cause is None:
        return made
    made |= {
        "layer": _layer(cause.node.point),
        "kind": cause.node.kind,
        "operators": probe.get("leaf", {}),
        "inputs": [label(p) for p in dict.fromkeys((*cause.node.parents, *cause.node.context))],
        "through": [label(p) for p in cause.node.through],
        "row": {"sequence": cause.row[0], "position": cause.row[1]},
        "rows_different": cause.rows,
        "largest_difference": probe.get("largest_difference"),
        "dtype": outcome.found.compared[cause.node.point].note or "the same",
        "points_before_equal": _before(outcome.found),
        "propagated_to": len(outcome.found.different) - 1,
    }
    return made


def _layer(point: Point) -> JsonValue:
    return {BEFORE: "before the layers", AFTER: "after the layers"}.get(point[0], point[0])


def _before(found: Localised) -> int:
    """Points up to the culprit in the order of the data, all of them equal in every row."""
    assert found.cause is not None
    count = 0
    for node in found.nodes:
        if node.point == found.cause.node.point:
            break
        count += found.compared[node.point].different == 0
    return count


def amplified(found: Localised | None) -> JsonValue:
    """Where the small difference became a discrete one: other experts chosen, downstream of the cause."""
    if found is None:
        return []
    flips = [(p, seen) for p, seen in found.different.items() if p[1] == "topk_ids"]
    own = found.cause.node.point if found.cause else None
    return _listed([f"{label(p)}: other experts in {seen.different} rows" for p, seen in flips if p != own], 6)


def _listed(texts: list[str], limit: int) -> JsonValue:
    return [*texts[:limit]]


def everything(outcome: Outcome) -> dict[str, JsonValue]:
    """For the artifact: every point of every pair."""
    return {
        "pairs": {
            name: {
                label(point): {
                    "rows": len(seen.keys),
                    "different": seen.different,
                    "not_computed_on_both": seen.not_computed,
                    "dtype": seen.note or "the same",
                    "status": found.status[point],
                }
                for point, seen in found.compared.items()
            }
            for name, found in outcome.hashed.items()
        },
        "probe": _plain(outcome.probe),
    }


def _plain(value: Mapping[str, Any]) -> JsonValue:
    return dict(value)
