"""The pages that only show: board, gate, evidence, baseline, runs, downloads."""

from __future__ import annotations

import json
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from bitgate.gates.baseline import manifest_changes
from bitgate.gates.report import Report, markdown
from bitgate.gates.rows import Manifest
from bitgate.gates.statements import statement
from bitgate.gates.status import GateStatus
from bitgate.gates.table import BY_ID, GATE_IDS
from bitgate.server.review.desk import Desk
from bitgate.server.review.plots import by_step, interval
from bitgate.server.review.rendering import page
from bitgate.server.review.words import plain
from bitgate.store.errors import StoreError
from bitgate.store.records import ArtifactRef, Evidence
from bitgate.tools.runs.logs import run_log

PNG: Final = b"\x89PNG\r\n\x1a\n"
RUNS: Final = 100


def board(request: Request) -> Response:
    desk = desk_of(request)
    states = desk.board()
    passed = sum(status.state == "passed" for status in states.values())
    return page(request, "board.html", board=states, passed=passed, frozen=desk.view().frozen)


def gate(request: Request) -> Response:
    status = status_of(request)
    return page(request, "gate.html", **gate_context(desk_of(request), status))


def gate_context(desk: Desk, status: GateStatus) -> dict[str, Any]:
    """Everything a gate's page shows."""
    seen = [(match, match.counter or match.seen) for match in status.matches]
    evidence = [(match, found, found.evidence) for match, found in seen if found]
    floor = desk.session.project.policy.rollout_floor
    position = GATE_IDS.index(status.gate.id)
    return {
        "status": status,
        "evidence": evidence,
        "plots": {e.id: [ref for ref in e.artifacts if ref.media_type == "image/png"] for _, _, e in evidence},
        "intervals": {e.id: interval(e, floor) for _, _, e in evidence},
        "lines": {e.id: by_step(e) for _, _, e in evidence},
        "lacking": [item for item in status.missing if item.key not in {"signature", "submission", "rejected"}],
        "before": GATE_IDS[position - 1] if position else None,
        "after": GATE_IDS[position + 1] if position + 1 < len(GATE_IDS) else None,
        "history": desk.view().histories[status.gate.id].rows[::-1],
        "key": desk.key,
    }


def status_of(request: Request) -> GateStatus:
    name = request.path_params["gate"]
    if name not in BY_ID:
        raise HTTPException(404, f"There is no gate {plain(name, 20)}; there are C0 to C10.")
    return desk_of(request).board()[name]


def gate_statement(request: Request) -> Response:
    found = statement(status_of(request))
    if found is None:
        raise HTTPException(404, "Only a gate that is passed has a statement.")
    return download(found.text().encode(), f"{request.path_params['gate']}.intoto.json", "application/json")


def evidence(request: Request) -> Response:
    found = _evidence(request)
    floor = desk_of(request).session.project.policy.rollout_floor
    plots = [ref for ref in found.artifacts if ref.media_type == "image/png"]
    return page(
        request, "evidence.html", evidence=found, plots=plots, interval=interval(found, floor), line=by_step(found)
    )


def evidence_file(request: Request) -> Response:
    found = _evidence(request)
    text = json.dumps(found.model_dump(mode="json"), allow_nan=False, indent=1, ensure_ascii=True)
    return download(text.encode("ascii"), f"{found.id}.json", "application/json")


def evidence_list(request: Request) -> Response:
    before = request.query_params.get("before") or None
    try:
        found = desk_of(request).store.list_evidence(limit=RUNS, before=before)
    except StoreError as error:
        raise HTTPException(404, str(error)) from error
    return page(request, "evidence_list.html", found=found, before=found[-1].id if len(found) == RUNS else None)


def _evidence(request: Request) -> Evidence:
    try:
        return desk_of(request).store.get_evidence(request.path_params["id"])
    except StoreError as error:
        raise HTTPException(404, plain(error, 300)) from error


def baseline(request: Request) -> Response:
    view = desk_of(request).view()
    manifests = [item.manifest for item in view.proposals]
    rows = [
        {
            "proposal": item,
            "frozen": view.frozen is not None and item.manifest.digest == view.frozen.digest,
            "changes": manifest_changes(_before(manifests, n), item.manifest),
        }
        for n, item in enumerate(view.proposals)
    ]
    return page(request, "baseline.html", rows=rows[::-1], frozen=view.frozen, status=desk_of(request).board()["C1"])


def _before(manifests: list[Manifest], position: int) -> Manifest | None:
    return manifests[position - 1] if position else None


def runs(request: Request) -> Response:
    return page(request, "runs.html", runs=desk_of(request).store.list_runs(limit=RUNS))


def run(request: Request) -> Response:
    desk = desk_of(request)
    try:
        found = desk.store.get_run(request.path_params["id"])
    except StoreError as error:
        raise HTTPException(404, plain(error, 300)) from error
    folder = desk.session.project.runs_dir / found.id
    log = run_log(folder) if folder.is_dir() else "The run's folder is not on this machine."
    return page(request, "run.html", run=found, log=plain(log, 200_000))


def chain(request: Request) -> Response:
    desk = desk_of(request)
    desk.chain.look(desk.store.head().hash)
    desk.chain.wait()
    return page(request, "chain.html")


def report(request: Request) -> Response:
    desk = desk_of(request)
    view = desk.view()
    text = markdown(Report(desk.board(), view.head, view.frozen))
    return download(text.encode(), "bitgate-report.md", "text/markdown")


def artifact(request: Request) -> Response:
    """Always a download: whatever an artifact holds, this page never runs or renders it."""
    ref, path = _artifact(request)
    return FileResponse(path, filename=ref.name, media_type="application/octet-stream")


def plot(request: Request) -> Response:
    """The one kind of artifact that is shown: a PNG, by its bytes and not by its name."""
    ref, path = _artifact(request)
    with path.open("rb") as file:
        is_png = file.read(len(PNG)) == PNG
    if ref.media_type != "image/png" or not is_png:
        raise HTTPException(404, "This artifact is not a plot.")
    return FileResponse(path, media_type="image/png", headers={"Content-Disposition": "inline"})


def _artifact(request: Request) -> tuple[ArtifactRef, Any]:
    found = _evidence(request)
    digest = request.path_params["digest"]
    ref = next((ref for ref in found.artifacts if ref.digest == digest), None)
    if ref is None:
        raise HTTPException(404, "This evidence names no such artifact.")
    try:
        return ref, desk_of(request).store.artifacts.path(ref.digest)
    except StoreError as error:
        raise HTTPException(404, plain(error, 300)) from error


def download(data: bytes, name: str, media_type: str) -> Response:
    return Response(data, media_type=media_type, headers={"Content-Disposition": f'attachment; filename="{name}"'})


def desk_of(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk
