"""From the turns of a run to its finding: the ratio and every veto, or the time by operator class."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import JsonValue, ValidationError

from bitgate.store.records import Finding
from bitgate.tools.ab.analysis import compared, judged, outcome
from bitgate.tools.ab.conduct import WorkerSide
from bitgate.tools.ab.known import LedgerFacts
from bitgate.tools.ab.operators import breakdown_figures, breakdown_summary
from bitgate.tools.ab.ran import Ran, by_name, facts_of, records_of
from bitgate.tools.ab.report import artifacts_of, figures_of, raw_samples, summary_of
from bitgate.tools.ab.vetoes import Check, Trial, vetoes
from bitgate.tools.reasons import next_step, reason, verdict_of

if TYPE_CHECKING:
    from bitgate.tools.runs.context import RunContext


def conclude(context: RunContext, ran: Ran) -> Finding:
    records, models = records_of(ran)
    check: Check = "aa" if ran.check == "aa" else "floor" if ran.check == "floor" else "ab"
    measured = compared([turn for turn in ran.score.turns if turn.phase == "measured"])
    null = compared([turn for turn in ran.score.turns if turn.phase == "null"])
    result = outcome(measured, None) if check == "aa" else outcome(null, measured)
    trial = Trial(
        check,
        facts_of(ran, "a", records, models),
        facts_of(ran, "b", records, models),
        ran.score.turns,
        ran.plan.max_tokens,
        known_of(context.known),
        ran.workload,
        result.main.interval.ratio if result.main else None,
    )
    floor = context.project.policy.rollout_floor
    reasons = [*vetoes(trial), *judged(check, result, floor)]
    if measured is None and not reasons:
        reasons.append(reason("too_few_pairs", "no block of turns could be evaluated"))
    return Finding(
        verdict=verdict_of(reasons),
        reasons=tuple(reasons),
        summary=summary_of(check, trial, result, reasons, floor),
        next=next_step(reasons) or "Submit this evidence to its gate, or name it in propose_baseline(tuning=[…]).",
        figures=figures_of(check, ran, trial, result, floor),
        grade="observed" if all(isinstance(s, WorkerSide) for s in ran.servers.values()) else "attested",
        check=check,
        sides=by_name(ran, records),
        models=by_name(ran, models),
        artifacts=artifacts_of(context, ran, result, floor if check == "floor" else None),
    )


def conclude_breakdown(context: RunContext, ran: Ran) -> Finding:
    records, models = records_of(ran)
    profiles = {ran.sides[turn.arm].name: turn for turn in ran.score.turns if turn.phase == "profile"}
    operators = {name: turn.record.operators or {} for name, turn in profiles.items()}
    figures = breakdown_figures(operators, {name: turn.record.seconds for name, turn in profiles.items()})
    reasons = [] if all(found.get("classes") for found in operators.values()) else [
        reason("not_observed", "the profiler reported no operator")
    ]  # fmt: skip
    body = json.dumps(operators, indent=1, allow_nan=False).encode("utf-8")
    return Finding(
        verdict=verdict_of(reasons),
        reasons=tuple(reasons),
        summary=breakdown_summary(figures),
        next=next_step(reasons) or "Win back time where the difference is greatest; then measure without breakdown.",
        figures=figures,
        grade="observed",
        check="breakdown",
        sides=by_name(ran, records),
        models=by_name(ran, models),
        artifacts=(
            context.artifacts.put_bytes(body, name="operators.json", media_type="application/json"),
            raw_samples(context, ran),
        ),
    )


def known_of(known: Mapping[str, JsonValue]) -> LedgerFacts:
    """What cannot be read counts as not read: then nothing is claimed (vetoes.py)."""
    try:
        return LedgerFacts.model_validate(known)
    except ValidationError:
        return LedgerFacts()
