"""The finding of a census and of a cut: figures small enough for an answer, everything else as artifacts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bitgate.store.records import ArtifactRef, Finding, ModelRecord, Reason
from bitgate.tools.reasons import next_step, reason, verdict_of
from bitgate.tools.runs.context import RunContext
from bitgate.tools.slice.census import Census, check_layers_present, take_census
from bitgate.tools.slice.checkpoint import Checkpoint, open_checkpoint
from bitgate.tools.slice.cut import CutResult
from bitgate.tools.slice.family import Model, read_model
from bitgate.tools.slice.identity import layout_digest
from bitgate.tools.slice.layout import Layout
from bitgate.tools.slice.plan import Plan, ranges
from bitgate.tools.slice.proof import spans, token_count
from bitgate.tools.slice.report import census_rows, census_text, layer_classes, untested

TEXT_LIMIT: Final = 5000


@dataclass(frozen=True)
class Subject:
    """The model to cut, read but not loaded."""

    name: str
    checkpoint: Checkpoint
    model: Model
    census: Census


def read_subject(name: str, path: Path) -> Subject:
    checkpoint = open_checkpoint(path)
    model = read_model(checkpoint.config)
    check_layers_present(model, checkpoint.tensors)
    census = take_census(model, {entry.name: entry.dtype for entry in checkpoint.tensors.values()})
    return Subject(name, checkpoint, model, census)


def census_finding(
    context: RunContext, subject: Subject, planned: dict[str, Any], record: ModelRecord | None
) -> Finding:
    text = census_text(subject.model, subject.census)
    unknown = (*subject.census.unknown, *subject.census.unknown_keys)
    reasons = (reason("slice_names_unknown", f"{len(unknown)}: {', '.join(unknown[:8])}"),) if unknown else ()
    classes = len({item.name for item in subject.census.layers})
    return Finding(
        verdict=verdict_of(reasons),
        reasons=reasons,
        summary=f"Census of {subject.name}: {sum(m.count for m in subject.census.modules)} modules in "
        f"{subject.model.total} layers of {classes} classes, {len(unknown)} names unknown.",
        next=next_step(reasons) or "Call slice_model without plan_only to cut the slice.",
        grade="observed",
        check="census",
        figures={**census_figures(subject), "plan": planned, "table": text[:TEXT_LIMIT]},
        models={} if record is None else {subject.name: record},
        artifacts=(
            put(context, "census.txt", text, "text/plain"),
            put_json(context, "census.json", census_body(subject)),
        ),
    )


def cut_finding(
    context: RunContext,
    subject: Subject,
    plan: Plan,
    layout: Layout,
    result: CutResult,
    reports: Mapping[str, Any],
    skipped: str,
    record: ModelRecord,
    reasons: tuple[Reason, ...],
) -> Finding:
    window_run = "equal" in reports.get("window", {})
    longest = token_count(subject.model) if window_run else 0
    too_long = {name: length for name, length in spans(subject.model).items() if length >= longest}
    figures = {
        **census_figures(subject),
        "plan": plan_figures(plan),
        "tensors": len(result.tensors),
        "tensors_different": len(result.different),
        "tensors_cut_in_part": sum(not item.whole for item in result.tensors),
        "bytes": result.size,
        "copied_in_kernel": result.in_kernel,
        "path": str(result.path),
        "loads": {name: dict(reports[name]) for name in ("transformers", "vllm") if name in reports},
        "window": dict(reports["window"])
        if "window" in reports
        else {"mode": "not run", "why": skipped or "not asked for"},
        "untested": untested(subject.model, plan, window_run, too_long, not_loaded(reports)),
    }
    body = {**census_body(subject), "plan": asdict(plan), "tensors": [asdict(item) for item in result.tensors]}
    body |= {"reports": dict(reports), "config": layout.config}
    verdict = verdict_of(reasons)
    return Finding(
        verdict=verdict,
        reasons=reasons,
        summary=_summary(subject, plan, result, window_run, skipped, verdict == "pass"),
        next=next_step(reasons) or f'Call run_compare(check="repeat", model="{record.name}") on the slice.',
        grade="observed",
        check="cut",
        figures=figures,
        models={record.name: record},
        self_test=dict(reports.get("window", {}).get("self_test", {})),
        artifacts=(
            put(context, "census.txt", census_text(subject.model, subject.census), "text/plain"),
            put_json(context, "slice.json", body),
        ),
    )


def not_loaded(reports: Mapping[str, Any]) -> dict[str, str]:
    """The engines that did not load the slice, and why."""
    found = {name: reports.get(name, {"why": "not asked for"}) for name in ("transformers", "vllm")}
    return {name: str(report.get("why")) for name, report in found.items() if report.get("mode") != "loaded"}


def _summary(subject: Subject, plan: Plan, result: CutResult, window: bool, skipped: str, good: bool) -> str:
    marks = "" if plan.contiguous else ", not contiguous"
    marks += ", chosen by the caller" if plan.by_user else ""
    equal = f"{len(result.tensors) - len(result.different)} of {len(result.tensors)} tensors equal their source"
    computed = "every layer computes the full model's bits" if window and good else "window equivalence "
    if not (window and good):
        computed += "did not pass" if window else f"was not run{': ' + skipped if skipped else ''}"
    return (
        f"{result.path.name}: layers {ranges(plan.kept)} of {subject.model.total}{marks} of {subject.name}, "
        f"{result.size:,} bytes; {equal}; {computed}."
    )


def census_figures(subject: Subject) -> dict[str, Any]:
    return {
        "family": subject.model.family.names[0],
        "layers": subject.model.total,
        "layer_classes": layer_classes(subject.census),
        "unknown_names": list(subject.census.unknown[:20]),
        "unknown_keys": list(subject.census.unknown_keys[:20]),
        "source_layout": layout_digest(subject.checkpoint),
        "source_bytes": subject.checkpoint.size,
        "unindexed_tensors": len(subject.checkpoint.unindexed),
    }


def census_body(subject: Subject) -> dict[str, Any]:
    return {
        "family": subject.model.family.names[0],
        "layers": [asdict(item) for item in subject.census.layers],
        "modules": [asdict(item) for item in subject.census.modules],
        "summary": census_rows(subject.census),
        "unknown": [*subject.census.unknown, *subject.census.unknown_keys],
    }


def plan_figures(plan: Plan) -> dict[str, Any]:
    return {
        "kept": list(plan.kept),
        "closure": list(plan.closure),
        "contiguous": plan.contiguous,
        "by_user": plan.by_user,
        "synthetic_adjacencies": [f"{left} -> {right}" for left, right in plan.synthetic],
        "classes_missed": list(plan.classes_missed),
        "pairs_missed": [f"{left} -> {right}" for left, right in plan.pairs_missed],
    }


def put(context: RunContext, name: str, text: str, media_type: str) -> ArtifactRef:
    return context.artifacts.put_bytes(text.encode("utf-8"), name=name, media_type=media_type)


def put_json(context: RunContext, name: str, body: Any) -> ArtifactRef:
    return put(context, name, json.dumps(body, allow_nan=False), "application/json")
