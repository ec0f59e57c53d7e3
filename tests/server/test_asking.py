"""A client that can ask its user is given the review page to show. Nothing that it answers signs, or moves a gate."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from gate_project import found_reviewers, make_key, make_project, meet, now, propose_tuned
from mcp.client import Client
from mcp.types import ElicitRequestURLParams, ElicitResult, ErrorData

from bitgate.gates import decisions
from bitgate.gates.ledger import LedgerView
from bitgate.gates.roles import Actor
from bitgate.gates.rows import pretty
from bitgate.gates.submit import submit
from bitgate.server.app import build_server
from bitgate.server.gate_answers import ADDRESS
from bitgate.server.session import Session, Workplace
from bitgate.store import Store
from bitgate.tools.config.project import Project

PAGE = "http://127.0.0.1:8123"
Asked = list[Any]


@pytest.fixture
def key(tmp_path: Path, ssh_keys: None) -> Path:
    return make_key(tmp_path)


@pytest.fixture
def project(tmp_path: Path, key: Path) -> Project:
    """C0 passed; the baseline is proposed, so that C1 awaits a person; a review page is running."""
    made = make_project(tmp_path)
    with Store.open(made.ledger) as store:
        found_reviewers(store, key)
        meet(store, made, "C0")
        submit(store, "C0", now(made, store), Actor("consistency", "a"))
        meet(store, made, "C1")
        propose_tuned(store, made)
    (made.state / ADDRESS).write_text(f"{PAGE}\n", encoding="utf-8")
    return made


@pytest.fixture
def ssh_keys() -> None:
    """Names what these tests need: ssh-keygen makes a key and signs."""


@pytest.fixture
def connect(project: Project) -> Callable[..., Any]:
    @asynccontextmanager
    async def open_client(mode: str, reply: Callable[[Any], Any] | None) -> AsyncIterator[tuple[Client, Asked]]:
        asked: Asked = []

        async def answer(_: Any, params: Any) -> Any:
            asked.append(params)
            return reply(params) if reply else None

        server = build_server(Session(Workplace(project.root), "agent", "baseline"))
        async with Client(server, mode=mode, elicitation_callback=answer if reply else None) as client:
            yield client, asked

    return open_client


def votes(project: Project) -> list[str]:
    with Store.open(project.ledger) as store:
        return [entry.kind for entry in store.entries() if entry.kind in {"signature", "reviewers", "token"}]


def state(project: Project, gate: str = "C1") -> str:
    with Store.open(project.ledger) as store:
        return LedgerView(store).board(now(project, store))[gate].state


async def submitted(client: Client, gate: str = "C1") -> dict[str, Any]:
    result = await client.call_tool("submit_gate", {"gate": gate})
    assert not result.is_error and isinstance(result.structured_content, dict)
    return result.structured_content


MODES = pytest.mark.parametrize("mode", ["auto", "legacy"])
REPLIES: dict[str, Callable[[Any], Any]] = {
    "accept": lambda _: ElicitResult(action="accept"),
    "accept with an answer in it": lambda _: ElicitResult(
        action="accept", content={"approve": True, "signature": "x", "choice": "approve"}
    ),
    "decline": lambda _: ElicitResult(action="decline"),
    "cancel": lambda _: ElicitResult(action="cancel"),
}


@pytest.mark.anyio
@MODES
@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES)
@pytest.mark.attack
async def test_the_user_is_offered_the_page_and_no_reply_signs_or_moves_the_gate(connect, project, mode, reply):
    before = votes(project)
    async with connect(mode, reply) as (client, asked):
        answer = await submitted(client)
    [question] = asked
    assert isinstance(question, ElicitRequestURLParams)
    assert question.url == f"{PAGE}/gates/C1"
    assert "Answering here signs nothing" in question.message
    assert answer["gate"]["state"] == "awaiting" and answer["recorded"]
    assert answer["asked"].endswith("That signs nothing.") and PAGE in answer["sign"]
    assert (votes(project), state(project)) == (before, "awaiting")


@pytest.mark.anyio
@MODES
@pytest.mark.attack
async def test_the_page_is_offered_without_a_token_that_would_open_it(connect, mode):
    async with connect(mode, REPLIES["accept"]) as (client, asked):
        answer = await submitted(client)
    assert "token" not in f"{asked[0].url} {answer}"


@pytest.mark.anyio
@MODES
async def test_a_client_that_cannot_ask_gets_the_page_and_the_command_as_text(connect, project, mode):
    async with connect(mode, None) as (client, _):
        answer = await submitted(client)
    assert "asked" not in answer
    assert answer["sign"] == f"a person opens {PAGE}/gates/C1 (or runs bitgate review, or bitgate decision C1)"
    assert state(project) == "awaiting"


@pytest.mark.anyio
async def test_a_client_that_only_has_forms_is_asked_nothing(connect, monkeypatch):
    """A form has an answer in it; a page has none."""
    from mcp.types import ClientCapabilities, ElicitationCapability, FormElicitationCapability

    forms = ClientCapabilities(elicitation=ElicitationCapability(form=FormElicitationCapability()))
    monkeypatch.setattr("mcp.server.mcpserver.Context.client_capabilities", forms)
    async with connect("auto", REPLIES["accept"]) as (client, asked):
        answer = await submitted(client)
    assert not asked and "asked" not in answer and PAGE in answer["sign"]


@pytest.mark.anyio
async def test_a_client_that_answers_with_an_error_still_gets_its_submission(connect):
    async with connect("legacy", lambda _: ErrorData(code=-32603, message="the dialog broke")) as (client, asked):
        answer = await submitted(client)
    assert len(asked) == 1 and answer["recorded"]
    assert "gave no answer" in answer["asked"]


@pytest.mark.anyio
@MODES
async def test_without_a_page_that_runs_nobody_is_asked(connect, project, mode):
    (project.state / ADDRESS).unlink()
    async with connect(mode, REPLIES["accept"]) as (client, asked):
        answer = await submitted(client)
    assert not asked and answer["sign"] == "a person runs bitgate review, or bitgate decision C1"


@pytest.mark.anyio
@MODES
async def test_a_gate_that_awaits_nobody_and_a_look_at_one_ask_nothing(connect, mode):
    async with connect(mode, REPLIES["accept"]) as (client, asked):
        await submitted(client, "C0")
        await client.call_tool("get_gates", {"gate": "C1"})
    assert not asked


@pytest.mark.anyio
async def test_what_was_signed_on_the_page_meanwhile_is_what_the_retried_submission_sees(connect, project, key):
    """Protocol 2026-07-28: the question is returned, and the call comes again with the reply."""

    def sign(_: Any) -> ElicitResult:
        with Store.open(project.ledger) as store:
            made = decisions.decision_for(store, "C1", now(project, store), "approve")
            decisions.record(store, pretty(made), decisions.sign_with(made, key), now(project, store))
        return ElicitResult(action="decline")

    async with connect("auto", sign) as (client, asked):
        answer = await submitted(client)
    assert len(asked) == 1 and answer["gate"]["state"] == "passed"
    assert votes(project).count("signature") == 1
