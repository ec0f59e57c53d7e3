"""Templates: everything escaped, everything of others through `plain`."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from bitgate.gates.reviewers import names
from bitgate.server.about import version
from bitgate.server.review import words

SYMBOLS: Final = {"passed": "✓", "failed": "✗", "stale": "!", "awaiting": "✎", "open": "○", "locked": "–"}
VERDICTS: Final = {"pass": "passed", "fail": "failed", "invalid": "stale", "inconclusive": "stale"}
MEANINGS: Final = {
    "passed": "evidence, and signatures where needed, hold today",
    "failed": "a result or a reviewer says no",
    "stale": "it passed, and something changed since",
    "awaiting": "everything is there; a person decides",
    "open": "something is missing",
    "locked": "an earlier gate comes first",
}


@cache
def environment() -> Environment:
    made = Environment(loader=PackageLoader("bitgate.server.review"), autoescape=True, undefined=StrictUndefined)
    made.filters |= {
        "plain": words.plain,
        "figure": words.figure,
        "moment": words.moment,
        "short": words.short,
        "reproduce": words.reproduce,
    }
    made.globals |= {"symbols": SYMBOLS, "verdicts": VERDICTS, "meanings": MEANINGS, "version": version()}
    made.trim_blocks = made.lstrip_blocks = True
    return made


def page(request: Request, template: str, code: int = 200, **values: Any) -> Response:
    """A page with what every page has: who may sign, the chain's head, and whether it verifies."""
    desk = request.app.state.desk
    view = desk.view()
    shared = {
        "path": request.url.path,
        "csrf": request.scope["csrf"],
        "root": desk.session.project.root,
        "head": view.head,
        "checked": desk.chain.look(view.head.hash),
        "signers": names(view.reviewers.current),
    }
    return HTMLResponse(environment().get_template(template).render(**shared, **values), status_code=code)


def bare(request: Request, code: int, message: str) -> Response:
    """A refusal: says why, and nothing of the ledger."""
    text = environment().get_template("refused.html").render(code=code, message=message)
    return HTMLResponse(text, status_code=code)
