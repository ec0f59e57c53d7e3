"""The forms: what a person would sign is prepared, downloaded, signed elsewhere and brought back, or signed at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, get_args

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from bitgate.gates import decisions
from bitgate.gates.errors import GateError
from bitgate.gates.rows import Choice, Decision, pretty
from bitgate.server.review.guard import form_token_holds
from bitgate.server.review.pages import desk_of, download, gate_context, status_of
from bitgate.server.review.rendering import page
from bitgate.server.review.words import plain

FIELDS: Final = 60
PART: Final = 512 * 1024


async def prepare(request: Request) -> Response:
    """From choice and reason to the text that is signed, shown whole."""
    return await _with_form(request, _prepare)


async def bundle(request: Request) -> Response:
    """The prepared text as a file, byte for byte."""
    return await _with_form(request, _bundle)


async def sign(request: Request) -> Response:
    """Takes a signature, or makes one when the page was started with a key."""
    return await _with_form(request, _sign)


async def _with_form(request: Request, act: Callable[[Request, FormData], Response]) -> Response:
    async with request.form(max_files=2, max_fields=FIELDS, max_part_size=PART) as form:
        if not form_token_holds(request, _text(form, "csrf")):
            raise HTTPException(403, "The form's token is not this session's; nothing was done.")
        signature = form.get("signature_file")
        if isinstance(signature, UploadFile) and signature.filename:
            data = await signature.read()
            form = FormData([*form.multi_items(), ("signature", data.decode("ascii", "replace"))])
        return await run_in_threadpool(act, request, form)


def _prepare(request: Request, form: FormData) -> Response:
    status = status_of(request)
    try:
        decision = _decision(request, form)
    except GateError as error:
        return _again(request, str(error))
    desk = desk_of(request)
    return page(request, "sign.html", status=status, decision=decision, text=pretty(decision), key=desk.key, problem="")


def _decision(request: Request, form: FormData) -> Decision:
    choice = _text(form, "choice")
    if choice not in get_args(Choice):
        raise GateError("choice: pick approve, reject or waive.")
    needs = tuple(value for key, value in form.multi_items() if key == "need" and isinstance(value, str))
    desk = desk_of(request)
    gate = request.path_params["gate"]
    named: Choice = choice  # type: ignore[assignment]
    return decisions.decision_for(desk.store, gate, desk.today(), named, _text(form, "reason"), needs)


def _bundle(request: Request, form: FormData) -> Response:
    text = _message(form)
    decision = _parsed(text)
    return download(text.encode(), f"{decision.gate}-{decision.choice}.json", "application/json")


def _sign(request: Request, form: FormData) -> Response:
    desk, text = desk_of(request), _message(form)
    decision = _parsed(text)
    if decision.gate != status_of(request).gate.id:
        raise HTTPException(400, "This decision is about another gate.")
    try:
        signature = _text(form, "signature").strip()
        if signature:
            signature = signature.replace("\r\n", "\n") + "\n"
        elif desk.key is not None and _text(form, "with_key"):
            signature = decisions.sign_with(decision, desk.key)
        else:
            raise GateError("signature: paste it, choose its file, or start the page with --key.")
        decisions.record(desk.store, text, signature, desk.today())
    except GateError as error:
        return page(
            request, "sign.html", code=409, status=status_of(request), decision=decision, text=text, key=desk.key,
            problem=plain(error, 500),
        )  # fmt: skip
    return RedirectResponse(f"/gates/{decision.gate}#people", status_code=303)


def _parsed(text: str) -> Decision:
    try:
        return decisions.parse(text)
    except GateError as error:
        raise HTTPException(400, plain(error, 300)) from error


def _again(request: Request, problem: str) -> Response:
    desk = desk_of(request)
    context = gate_context(desk, status_of(request))
    return page(request, "gate.html", code=409, problem=plain(problem, 500), **context)


def _message(form: FormData) -> str:
    """Browsers send text areas with CRLF; what is signed has LF alone."""
    return _text(form, "decision").replace("\r\n", "\n")


def _text(form: FormData, name: str) -> str:
    values = [value for value in form.getlist(name) if isinstance(value, str) and value]
    return values[-1] if values else ""
