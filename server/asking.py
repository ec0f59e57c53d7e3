"""Offering the review page to the person behind a client that can ask. Whatever the client answers signs nothing."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import anyio
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError
from mcp.types import ElicitRequest, ElicitRequestURLParams, ElicitResult, InputRequiredResult
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from bitgate.gates.table import BY_ID
from bitgate.server.arguments import WAIT_DEFAULT
from bitgate.server.gate_answers import review_address
from bitgate.server.session import Session

KEY: Final = "review"
"""Of the question, where questions travel inside answers (protocol 2026-07-28)."""
RECORDED: Final = "recorded"
REPLIES: Final[Mapping[str, str]] = {
    "accept": "their client says they went to look",
    "decline": "their client says they declined to look now",
    "cancel": "their client closed the question",
    "none": "their client gave no answer",
}


@dataclass(frozen=True)
class Offer:
    """A gate that awaits a person, and the page that shows it."""

    gate: str
    url: str

    @property
    def message(self) -> str:
        gate = BY_ID[self.gate]
        return (
            f"Gate {gate.id} {gate.title} awaits a person, who signs that {gate.signed_by}. The review page, on the "
            "machine that has the ledger, shows what there is to decide about. Answering here signs nothing."
        )


def offer_of(session: Session, body: Mapping[str, Any]) -> Offer | None:
    """The offer that goes with a submission; None when no person is awaited, or no review page is running."""
    gate = body.get("gate")
    if body.get("kind") != "submission" or not isinstance(gate, dict) or gate.get("state") != "awaiting":
        return None
    address = review_address(session.project.state)
    return Offer(gate["gate"], f"{address}/gates/{gate['gate']}") if address else None


async def offered(ctx: Context[None], offer: Offer, body: dict[str, Any]) -> dict[str, Any] | InputRequiredResult:
    """The submission's answer once the person was asked, or the question, where the client carries it back."""
    if not _can_ask(ctx):
        return body
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return _with_reply(body, await _asked(ctx, offer))
    replies = ctx.input_responses or {}
    if KEY not in replies:
        question = ElicitRequest(params=ElicitRequestURLParams(message=offer.message, url=offer.url))
        state = RECORDED if body.get(RECORDED) else None
        return InputRequiredResult(input_requests={KEY: question}, request_state=state)
    reply = replies[KEY]
    # The first round recorded the submission; this one found it on record.
    body = {**body, RECORDED: body.get(RECORDED) or ctx.request_state == RECORDED}
    return _with_reply(body, reply.action if isinstance(reply, ElicitResult) else "none")


def _can_ask(ctx: Context[None]) -> bool:
    """Only in URL mode: a form would have an answer in it, and there is none that we would take."""
    capabilities = ctx.client_capabilities
    asking = capabilities.elicitation if capabilities else None
    return asking is not None and asking.url is not None


async def _asked(ctx: Context[None], offer: Offer) -> str:
    """The client's action. The submission is on record, so a client that takes its time holds nothing up for ever."""
    with anyio.move_on_after(WAIT_DEFAULT):
        try:
            return (await ctx.elicit_url(offer.message, offer.url, secrets.token_urlsafe(12))).action
        except MCPError:
            return "none"
    return "none"


def _with_reply(body: dict[str, Any], action: str) -> dict[str, Any]:
    return {**body, "asked": f"A person was offered the review page; {REPLIES[action]}. That signs nothing."}
