"""run_compare in the supervisor: runs the sides or opens captures, compares, and concludes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio.to_thread
from pydantic import JsonValue

from bitgate.store.records import ArtifactRef, Coverage, Finding, Grade, ModelRecord, Reason, SideRecord
from bitgate.tools.captures.errors import CaptureError
from bitgate.tools.captures.read import Capture, open_captures
from bitgate.tools.checks.artifacts import keep_artifacts
from bitgate.tools.checks.conclude import (
    axis_report,
    canary_report,
    figures_of,
    grade_of,
    joined,
    next_of,
    with_unreadable_weights,
)
from bitgate.tools.checks.execute import execute, model_record, side_record, unreadable_weights
from bitgate.tools.checks.handed_in import varied
from bitgate.tools.checks.kernels import different_kernels, kernel_reasons, said_of_equal
from bitgate.tools.checks.legs import run_legs
from bitgate.tools.checks.select import axes_of, plan_check
from bitgate.tools.checks.views import REFERENCE, compare_plan
from bitgate.tools.compare.legs import compare_legs, compare_views
from bitgate.tools.compare.result import Comparison
from bitgate.tools.config.workloads import Workload, sequences_digest
from bitgate.tools.engines.adapters import adapter_of
from bitgate.tools.errors import VerdictError
from bitgate.tools.reasons import reason

if TYPE_CHECKING:
    from bitgate.tools.run_compare import CompareRequest
    from bitgate.tools.runs.context import RunContext


async def run_check(context: RunContext, request: CompareRequest) -> Finding:
    """The finding of one call. A capture that breaks makes it invalid; other failures end the run."""
    try:
        if request.captures:
            return await anyio.to_thread.run_sync(compare_captures, context, request)
        if request.check == "rollout_vs_trainer":
            return await rollout_vs_trainer(context, request)
        return await within_one_side(context, request)
    except CaptureError as error:
        raise VerdictError(error.code, error.reason.detail) from error


async def within_one_side(context: RunContext, request: CompareRequest) -> Finding:
    project = context.project
    side = project.side(request.side, request.options.get(request.side))
    model = project.model(request.model or side.model)
    workload = project.workload(request.workload)
    adapter = adapter_of(side.engine)
    plan = plan_check(request, adapter, side, model, workload)
    executed = await execute(context, side, model, plan, project.policy.run_timeout)
    axes = axis_report(plan, executed)
    main = executed.results[plan.jobs[0].name]
    canary = canary_report({side.name: main})

    def conclude() -> Finding:
        comparisons, reasons = compare_plan(plan, executed)
        comparison = joined(comparisons, [*reasons, *axes.reasons, *canary.reasons])
        return _finding(
            request,
            comparison,
            grade=grade_of(executed.results.values()),
            sides={side.name: side_record(side, axes_of(side, adapter), main)},
            models=_models({side.name: model_record(model, main.ranks[0])}),
            coverage=axes.coverage,
            canary=canary.record,
            artifacts=keep_artifacts(context, comparison),
            more=workload_facts(workload),
        )

    await context.progress(len(plan.jobs), len(plan.jobs), "comparing")
    return await anyio.to_thread.run_sync(conclude)


async def rollout_vs_trainer(context: RunContext, request: CompareRequest) -> Finding:
    legs = await run_legs(context, request)
    results = {name: job for name, job in legs.results.items()}
    canary = canary_report(results)

    def conclude() -> Finding:
        opened, reasons = open_captures(legs.captures)
        comparison = joined([compare_legs(opened)], [*legs.reasons, *reasons, *canary.reasons])
        comparison = with_unreadable_weights(comparison, unreadable_weights(results))
        sides = {s.name: side_record(s, legs.axes[s.name], results[s.name]) for s in legs.sides if s.name in results}
        kernels = different_kernels(*sides.values()) if len(sides) == 2 else {}
        if comparison.verdict == "fail":
            comparison = replace(comparison, reasons=comparison.reasons + kernel_reasons(kernels))
        if comparison.verdict == "pass":
            comparison = replace(comparison, summary=comparison.summary + said_of_equal(kernels))
        grade: Grade = grade_of(results.values()) if len(results) == len(legs.sides) else "attested"
        return _finding(
            request,
            comparison,
            grade=grade,
            sides=sides,
            models=_models({name: model_record(legs.model, job.ranks[0]) for name, job in results.items()}),
            coverage=Coverage(),
            canary=canary.record,
            artifacts=keep_artifacts(context, comparison),
            more=workload_facts(legs.workload) | ({"kernels_that_differ": kernels} if kernels else {}),
        )

    await context.progress(2, 2, "comparing")
    return await anyio.to_thread.run_sync(conclude)


def workload_facts(workload: Workload | None) -> dict[str, JsonValue]:
    """Which tokens the evidence is about: a workload's name may mean others tomorrow."""
    if workload is None:
        return {}
    sequences = workload.sequences()
    return {"workload": {"name": workload.name, "sequences": len(sequences), "digest": sequences_digest(sequences)}}


def compare_captures(context: RunContext, request: CompareRequest) -> Finding:
    """Files that somebody handed in: what they show is attested."""
    folders = {name: context.project.confined(path, f"captures.{name}") for name, path in request.captures.items()}
    opened, reasons = open_captures(folders)
    comparison, coverage = _compare_opened(request, opened)
    comparison = joined([comparison], reasons)
    return _finding(
        request,
        comparison,
        grade="attested",
        sides={},
        models={},
        coverage=coverage,
        canary={},
        artifacts=keep_artifacts(context, comparison),
    )


def _compare_opened(request: CompareRequest, opened: Mapping[str, Capture]) -> tuple[Comparison, Coverage]:
    if request.check == "rollout_vs_trainer":
        return compare_legs(opened), Coverage()
    views = {name: capture for name, capture in opened.items() if name != REFERENCE}
    if REFERENCE not in opened or not views:
        return Comparison({}, (), None, ""), Coverage()
    found = varied(request.check, opened[REFERENCE], views)
    return joined([compare_views(opened[REFERENCE], views)], found.reasons), found.coverage


def _finding(
    request: CompareRequest,
    comparison: Comparison,
    *,
    grade: Grade,
    sides: Mapping[str, SideRecord],
    models: Mapping[str, ModelRecord],
    coverage: Coverage,
    canary: dict[str, JsonValue],
    artifacts: tuple[ArtifactRef, ...],
    more: Mapping[str, JsonValue] | None = None,
) -> Finding:
    tested = comparison.self_test.record() if comparison.self_test else {}
    return Finding(
        verdict=comparison.verdict,
        reasons=_few(comparison.reasons),
        summary=comparison.summary,
        next=next_of(comparison),
        figures={**figures_of(comparison), **(more or {})},
        grade=grade,
        check=request.check,
        sides=dict(sides),
        models=dict(models),
        coverage=coverage,
        self_test={**tested, "canary": canary},
        artifacts=artifacts,
    )


def _few(reasons: tuple[Reason, ...]) -> tuple[Reason, ...]:
    """One reason a code, which says how many more there are; all of them are in the artifact."""
    by_code: dict[str, list[Reason]] = {}
    for item in reasons:
        by_code.setdefault(item.code, []).append(item)
    return tuple(
        reason(code, f"{found[0].detail} (and {len(found) - 1} more)") if len(found) > 1 else found[0]
        for code, found in by_code.items()
    )


def _models(found: Mapping[str, ModelRecord | None]) -> dict[str, ModelRecord]:
    return {name: record for name, record in found.items() if record is not None}
