"""The review application: routes behind the guard."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bitgate.server.review import deciding, pages
from bitgate.server.review.desk import Desk
from bitgate.server.review.guard import Door, Guard
from bitgate.server.review.rendering import bare, page
from bitgate.server.review.words import plain
from bitgate.store.errors import StoreError
from bitgate.tools.errors import BitgateError

STATIC: Final = {"style.css": "text/css", "page.js": "text/javascript"}


def build_app(desk: Desk, door: Door) -> Starlette:
    """The page for one desk, opened through one door."""
    app = Starlette(
        routes=[
            Route("/", pages.board),
            Route("/gates/{gate}", pages.gate),
            Route("/gates/{gate}/statement", pages.gate_statement),
            Route("/gates/{gate}/prepare", deciding.prepare, methods=["POST"]),
            Route("/gates/{gate}/bundle", deciding.bundle, methods=["POST"]),
            Route("/gates/{gate}/sign", deciding.sign, methods=["POST"]),
            Route("/evidence", pages.evidence_list),
            Route("/evidence/{id}", pages.evidence),
            Route("/evidence/{id}/file", pages.evidence_file),
            Route("/evidence/{id}/artifacts/{digest}", pages.artifact),
            Route("/evidence/{id}/plots/{digest}", pages.plot),
            Route("/baseline", pages.baseline),
            Route("/runs", pages.runs),
            Route("/runs/{id}", pages.run),
            Route("/chain", pages.chain),
            Route("/report", pages.report),
            Route("/static/{name}", static),
        ],
        middleware=[Middleware(Guard, door=door, refused=bare)],
        exception_handlers={
            HTTPException: _http_error,
            BitgateError: _our_error,
            StoreError: _our_error,
        },
    )
    app.state.desk = desk
    return app


def static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in STATIC:
        raise HTTPException(404)
    data = (files("bitgate.server.review") / "static" / name).read_bytes()
    return Response(data, media_type=STATIC[name], headers={"Cache-Control": "no-cache"})


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _problem(request, error.status_code, error.detail)


def _our_error(request: Request, error: Exception) -> Response:
    return _problem(request, 500, str(error))


def _problem(request: Request, code: int, message: str) -> Response:
    if "csrf" not in request.scope:
        return bare(request, code, plain(message, 300))
    return page(request, "problem.html", code=code, message=plain(message, 1000), number=code)
