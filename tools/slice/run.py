"""The tool's run: census and plan, cut in a child, proofs in the side's interpreter, then the finding."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from anyio.to_thread import run_sync

from bitgate.store import Store
from bitgate.store.records import Finding, ModelRecord, Reason, RegisteredModel
from bitgate.tools.checks.execute import run_probe
from bitgate.tools.config.project import SLICE_NAME, Project
from bitgate.tools.config.sides import Side
from bitgate.tools.errors import RequestError, WorkerError
from bitgate.tools.reasons import next_step, reason, verdict_of
from bitgate.tools.runs.context import RunContext
from bitgate.tools.slice.cut import CutResult, check_target
from bitgate.tools.slice.cutter import Order
from bitgate.tools.slice.family import Model
from bitgate.tools.slice.finding import Subject, census_finding, cut_finding, plan_figures, read_subject
from bitgate.tools.slice.identity import READ_UP_TO, layout_digest, record_of
from bitgate.tools.slice.layout import Layout, lay_out
from bitgate.tools.slice.plan import Plan, make_plan
from bitgate.tools.slice.process import cut_in_child
from bitgate.tools.slice.proof import available_memory, job_options, judge, wanted_proofs
from bitgate.tools.slice.refusal import Refusal

if TYPE_CHECKING:
    from bitgate.tools.slice_model import SliceRequest

PROOF_TIMEOUT_S: Final = 6 * 3600.0
STAGES: Final = 4


async def run_slice(context: RunContext, request: SliceRequest) -> Finding:
    check = "census" if request.plan_only else "cut"
    try:
        source = context.project.model(request.model)
        await context.progress(0, STAGES, f"reading the headers of {source.name}")
        subject = await run_sync(read_subject, source.name, source.path)
        return await (_census_only(context, request, subject) if request.plan_only else _cut(context, request, subject))
    except Refusal as refusal:
        why = reason(refusal.code, refusal.detail)
        return Finding(
            verdict=verdict_of([why]),
            reasons=(why,),
            summary=f"Not cut. {refusal.detail}",
            next=next_step([why]),
            grade="observed",
            check=check,
        )


def output_folder(project: Project, request: SliceRequest) -> Path:
    """Where the slice goes: beside the project's state. Raises RequestError when that cannot be."""
    source = project.model(request.model)
    name = request.name or f"{source.name}-slice"
    if not re.fullmatch(SLICE_NAME, name):
        raise RequestError("name", name, f"a name of the form {SLICE_NAME}", "Pass `name`: the default is too long.")
    if name in project.config.model:
        raise RequestError("name", name, "a name that no configured model has", "Choose another name.")
    out = project.state / "models" / name
    check_target(source.path, out)
    return out


def proving_side(project: Project, request: SliceRequest) -> Side | None:
    """The side whose interpreter runs the proofs."""
    names = [request.side] if request.side else ["rollout", "trainer", *sorted(project.config.side)]
    for name in names:
        if name in project.config.side:
            side = project.side(name)
            if side.python is not None:
                return side
    return None


async def _census_only(context: RunContext, request: SliceRequest, subject: Subject) -> Finding:
    _check_layers(request, subject.model)
    planned = await run_sync(_try_plan, subject, request)
    record = await run_sync(_source_record, subject)
    return census_finding(context, subject, planned, record)


def _try_plan(subject: Subject, request: SliceRequest) -> dict[str, Any]:
    try:
        plan = make_plan(subject.model, subject.census, request.layers, request.max_layers)
        layout = lay_out(subject.checkpoint, subject.model, plan.selection, request.keep_mtp)
    except Refusal as refusal:
        return {"refused": refusal.code, "detail": refusal.detail}
    return {**plan_figures(plan), "bytes": layout.size}


async def _cut(context: RunContext, request: SliceRequest, subject: Subject) -> Finding:
    out = output_folder(context.project, request)
    _check_layers(request, subject.model)
    plan = await run_sync(make_plan, subject.model, subject.census, request.layers, request.max_layers)
    layout = await run_sync(lay_out, subject.checkpoint, subject.model, plan.selection, request.keep_mtp)
    result = await _copy(context, subject, plan, layout, out, request.keep_mtp)
    proofs, skipped = wanted_proofs(request.proofs, subject.census)
    await context.progress(2, STAGES, "proving the slice")
    reports = await _prove(context, request, subject, plan, layout, out, proofs)
    await context.progress(3, STAGES, "digesting the slice")
    record = await run_sync(record_of, out.name, str(out), subject.name)
    reasons = judge(subject.census, plan, result, reports, skipped)
    await run_sync(_register, context, record, out, subject, plan, reasons)
    return cut_finding(context, subject, plan, layout, result, reports, skipped, record, reasons)


def _check_layers(request: SliceRequest, model: Model) -> None:
    beyond = [layer for layer in request.layers or () if layer >= model.total]
    if beyond:
        raise RequestError(
            "layers", beyond, f"numbers from 0 to {model.total - 1}", f"The model has {model.total} layers."
        )


async def _copy(
    context: RunContext, subject: Subject, plan: Plan, layout: Layout, out: Path, keep_mtp: bool
) -> CutResult:
    folder = context.folder / "cut"
    folder.mkdir(exist_ok=True)
    provenance = {
        "made_by": "bitgate slice_model",
        "source": subject.name,
        "source_layout": layout_digest(subject.checkpoint),
        "layers": list(plan.kept),
        "of": subject.model.total,
    }
    order = Order(
        str(subject.checkpoint.root), str(out), list(plan.kept), keep_mtp, provenance, str(folder / "result.json")
    )

    async def tell(done: int, total: int, rate: float) -> None:
        share = done / max(total, 1)
        await context.progress(1 + share, STAGES, f"{done:,} of {total:,} bytes, {rate / 1e6:,.0f} MB/s")

    await context.progress(1, STAGES, f"cutting {layout.size:,} bytes")
    return await cut_in_child(order, folder, tell)


async def _prove(
    context: RunContext,
    request: SliceRequest,
    subject: Subject,
    plan: Plan,
    layout: Layout,
    out: Path,
    proofs: tuple[Any, ...],
) -> dict[str, Any]:
    """Reports by proof; a worker that dies is itself a report, so that the byte proof is not lost."""
    side = proving_side(context.project, request)
    if side is None or not proofs:
        return {}
    memory = available_memory() if request.memory_gb is None else int(request.memory_gb * 1e9)
    options = job_options(subject.checkpoint, subject.model, plan, layout, proofs, memory)
    reports: dict[str, Any] = {}
    for proof in proofs:
        # One process each: an engine that takes its process down takes no other proof with it.
        reports[proof] = await _one_proof(context, side, out, {**options, "proofs": [proof]}, proof)
    return reports


async def _one_proof(context: RunContext, side: Side, out: Path, options: dict[str, Any], proof: str) -> Any:
    try:
        report = await run_probe(context, side, "slice_proof", out, options, PROOF_TIMEOUT_S)
    except WorkerError as error:
        return {"mode": "failed", "why": f"{error.code}: {error.message}"}
    return report.get(proof, {"mode": "failed", "why": "the worker gave no report"})


def _register(
    context: RunContext, record: ModelRecord, out: Path, subject: Subject, plan: Plan, reasons: tuple[Reason, ...]
) -> None:
    """A slice whose proof failed is not a model; it stays on the disk to be looked at."""
    if verdict_of(reasons) in ("fail", "invalid"):
        return
    body = RegisteredModel(
        **record.model_dump(),
        path=str(out),
        layers=plan.kept,
        source_layout=layout_digest(subject.checkpoint),
    )
    with Store.open(context.project.ledger) as store:
        store.register_model(body, store.get_run(context.run_id).actor)


def _source_record(subject: Subject) -> ModelRecord | None:
    if subject.checkpoint.size > READ_UP_TO:
        return None
    return record_of(subject.name, str(subject.checkpoint.root))
