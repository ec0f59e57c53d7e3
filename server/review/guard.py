"""Who gets to the review page: this machine, through the link that was printed once, and never another web page."""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE: Final = "bitgate_review"
LINK_SECONDS: Final = 600.0
SESSION_SECONDS: Final = 8 * 3600.0
MAX_BODY: Final = 2 * 1024**2
CSP: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer Chromium sends its own forms with Origin: null
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


@dataclass
class Door:
    """The printed link works once, for ten minutes; what it opens is a session that lives as long as this process."""

    hosts: frozenset[str]
    clock: Callable[[], float] = time.monotonic
    link: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    _made: float = 0.0
    _used: bool = False
    _sessions: dict[str, tuple[float, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._made = self.clock()

    def enter(self, token: str) -> str | None:
        """A new session for the link's token; None when it is wrong, used or too old."""
        fresh = not self._used and self.clock() - self._made <= LINK_SECONDS
        if not (hmac.compare_digest(token.encode(), self.link.encode()) and fresh):
            return None
        self._used = True
        session = secrets.token_urlsafe(32)
        self._sessions[session] = (self.clock(), secrets.token_urlsafe(32))
        return session

    def csrf(self, session: str) -> str | None:
        """The session's form token; None when there is no such session any more."""
        known = next(
            (value for key, value in self._sessions.items() if hmac.compare_digest(key.encode(), session.encode())),
            None,
        )
        return known[1] if known and self.clock() - known[0] <= SESSION_SECONDS else None


class Guard:
    """Around the whole application: Host, session, Origin, size, headers. Forms check their token themselves."""

    def __init__(self, app: ASGIApp, door: Door, refused: Callable[[Request, int, str], Response]) -> None:
        self.app, self.door, self.refused = app, door, refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                set_headers = {key.lower() for key, _ in message.get("headers", [])}
                extra = [
                    (k.lower().encode(), v.encode())
                    for k, v in HEADERS.items()
                    if k.lower().encode() not in set_headers
                ]
                message["headers"] = [*message.get("headers", []), *extra]
            await send(message)

        answer = self._answer(Request(scope, receive))
        await (answer or self.app)(scope, receive, with_headers)

    def _answer(self, request: Request) -> Response | None:
        """The refusal or redirect that ends here; None when the request may go on."""
        if request.headers.get("host", "") not in self.door.hosts:
            return self.refused(request, 421, "This page answers only under the address that was printed.")
        if request.url.path == "/enter":
            return self._enter(request)
        if request.url.path.startswith("/static/"):
            return None
        csrf = self.door.csrf(request.cookies.get(COOKIE, ""))
        if csrf is None:
            return self.refused(request, 401, "This link was used, is too old, or is not this session's.")
        request.scope["csrf"] = csrf
        return None if request.method in {"GET", "HEAD"} else self._posting(request)

    def _enter(self, request: Request) -> Response:
        session = self.door.enter(request.query_params.get("token", ""))
        if session is None:
            return self.refused(request, 401, "This link was used, or is older than ten minutes.")
        answer = RedirectResponse("/", status_code=303)
        answer.set_cookie(COOKIE, session, httponly=True, samesite="strict", path="/", max_age=int(SESSION_SECONDS))
        return answer

    def _posting(self, request: Request) -> Response | None:
        origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "same-origin")
        if origin not in {f"http://{host}" for host in self.door.hosts} or site != "same-origin":
            return self.refused(request, 403, "A form of another page was sent here; nothing was done.")
        if int(request.headers.get("content-length", "0") or 0) > MAX_BODY or "transfer-encoding" in request.headers:
            return self.refused(request, 413, f"Forms are at most {MAX_BODY} bytes.")
        return None


def form_token_holds(request: Request, given: str) -> bool:
    """Whether a form carries its session's token."""
    return hmac.compare_digest(given.encode(), str(request.scope["csrf"]).encode())
