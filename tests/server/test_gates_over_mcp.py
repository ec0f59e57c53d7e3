"""The gates over MCP: what agents see and submit, what roles refuse, and that nothing there can sign."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from gate_project import make_project
from mcp.client import Client

from bitgate.gates import reviewers
from bitgate.gates.table import GATE_IDS
from bitgate.server.app import build_server
from bitgate.server.gate_answers import ADDRESS, where_to_sign
from bitgate.server.session import Session, Workplace
from bitgate.store import Store

SIGNERS = "rosa ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEuKmOTJL67ywWuMivuFVzv7QiyNpYLlSx1vS8DQnj0\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    project = make_project(tmp_path)
    with Store.open(project.ledger) as store:
        reviewers.found(store, SIGNERS, "person:rosa")
    return tmp_path


@pytest.fixture
def connect(root: Path) -> Callable[..., Any]:
    @asynccontextmanager
    async def open_client(role: str, mode: str = "auto") -> AsyncIterator[Client]:
        async with Client(build_server(Session(Workplace(root), "agent", role)), mode=mode) as client:  # type: ignore[arg-type]
            yield client

    return open_client


async def called(client: Client, name: str, **arguments: Any) -> tuple[bool, Any]:
    """Whether the call was refused, and its answer or its words."""
    result = await client.call_tool(name, arguments)
    text = result.content[0].text
    return bool(result.is_error), (text if result.is_error else result.structured_content)


def rows(root: Path) -> list[tuple[str, str]]:
    with Store.open(root / ".bitgate" / "ledger.db") as store:
        return [(entry.kind, entry.actor) for entry in store.entries()]


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_board_names_every_gate_and_what_is_next(connect, mode):
    async with connect("observer", mode) as client:
        refused, answer = await called(client, "get_gates")
    assert not refused
    assert [item["gate"] for item in answer["gates"]] == list(GATE_IDS)
    assert answer["next"] == 'C0: slice_model(model="full", plan_only=true)'
    assert len(json.dumps(answer)) < 10_000


@pytest.mark.anyio
async def test_one_gate_is_shown_whole(connect):
    async with connect("observer") as client:
        _, answer = await called(client, "get_gates", gate="C3")
    assert {item["key"] for item in answer["missing"]} == {"provenance_rollout", "repeat", "batch"}
    assert "no slice of the model is registered" in json.dumps(answer["missing"])


@pytest.mark.anyio
async def test_a_submission_is_recorded_with_role_and_name(connect, root):
    async with connect("consistency") as client:
        refused, answer = await called(client, "submit_gate", gate="C0")
    assert not refused and answer["recorded"] and answer["gate"]["state"] == "open"
    assert rows(root)[-1] == ("gate", "consistency:agent")


REFUSED: list[tuple[str, str, dict[str, Any]]] = [
    ("observer", "submit_gate", {"gate": "C0"}),
    ("observer", "propose_baseline", {}),
    ("observer", "run_compare", {"check": "batch"}),
    ("observer", "slice_model", {"plan_only": True}),
    ("consistency", "propose_baseline", {}),
    ("consistency", "submit_gate", {"gate": "C1"}),
    ("consistency", "run_compare", {"check": "batch", "side": "baseline"}),
    ("consistency", "run_compare", {"check": "batch", "side": "cand"}),
    ("consistency", "run_compare", {"check": "rollout_vs_trainer", "side": "rollout", "trainer": "baseline"}),
    ("consistency", "run_compare", {"check": "batch", "side": "baseline", "options": {"baseline": {"x": 1}}}),
    ("baseline", "submit_gate", {"gate": "C5"}),
    ("baseline", "run_compare", {"check": "batch", "side": "rollout"}),
    ("baseline", "run_compare", {"check": "rollout_vs_trainer"}),
    ("baseline", "run_compare", {"check": "batch", "side": "cand", "options": {"rollout": {"x": 1}}}),
    ("baseline", "propose_baseline", {}),
]  # fmt: skip


@pytest.mark.anyio
@pytest.mark.parametrize(("role", "tool", "arguments"), REFUSED)
@pytest.mark.attack
async def test_what_the_role_may_not_is_refused_before_a_row_is_written(connect, root, role, tool, arguments):
    before = rows(root)
    async with connect(role) as client:
        refused, words = await called(client, tool, **arguments)
    assert refused and len(words) > 20
    assert rows(root) == before


ESCAPES = [
    "../../etc",
    "/etc/passwd",
    "full\x00",
    "bitgate.toml/../../..",
    "..",
    "/",
    "full/../../x",
    "/proc/self/environ",
]


@pytest.mark.anyio
@pytest.mark.parametrize("path", ESCAPES)
@pytest.mark.attack
async def test_a_path_that_leads_out_is_refused(connect, root, path):
    before = rows(root)
    async with connect("consistency") as client:
        refused, _ = await called(client, "run_compare", check="batch", captures={"reference": path, "other": path})
        assert refused
        named, _ = await called(client, "run_compare", check="batch", side=path)
    assert named and rows(root) == before


FORBIDDEN = [
    "command",
    "python",
    "env",
    "launcher",
    "module",
    "source",
    "owner",
    "role",
    "actor",
    "signature",
    "key",
    "approve",
    "vote",
    "waive",
]


@pytest.mark.anyio
@pytest.mark.parametrize("field", FORBIDDEN)
@pytest.mark.attack
async def test_no_tool_takes_what_only_people_decide(connect, root, field):
    """Neither in its schema, nor when it is sent anyway."""
    before = [row for row in rows(root) if row[0] in {"signature", "reviewers", "token"}]
    async with connect("consistency") as client:
        for tool in (await client.list_tools()).tools:
            assert field not in tool.input_schema["properties"], tool.name
            refused, words = await called(client, tool.name, **{field: "x"})
            assert refused and field in words, (tool.name, words)
    assert [row for row in rows(root) if row[0] in {"signature", "reviewers", "token"}] == before


@pytest.mark.anyio
@pytest.mark.attack
async def test_the_whole_surface_is_walked_and_nothing_in_it_signs(connect, root):
    """Every tool with its defaults, every resource, every prompt: no row of people appears, and no gate moves."""
    people = {"signature", "reviewers", "token", "import"}
    before = [row for row in rows(root) if row[0] in people]
    async with connect("consistency") as client:
        for tool in (await client.list_tools()).tools:
            assert not any(
                word in tool.name for word in ("sign", "approve", "vote", "waive", "decide", "token", "freeze")
            )
        for name in ("get_gates", "submit_gate", "propose_baseline", "get_evidence", "cancel_run", "get_run"):
            for arguments in ({}, {"gate": "C1"}, {"run_id": "run_" + "0" * 20}):
                await called(client, name, **arguments)
        for resource in (await client.list_resources()).resources:
            await client.read_resource(str(resource.uri))
        for gate in GATE_IDS:
            await client.read_resource(f"bitgate://gates/{gate}")
        for prompt in (await client.list_prompts()).prompts:
            found = await client.get_prompt(prompt.name, {"gate": "C1"} if prompt.name == "review" else None)
            assert found.messages
        states = (await called(client, "get_gates"))[1]["gates"]
    assert [row for row in rows(root) if row[0] in people] == before
    assert {item["state"] for item in states} <= {"open", "locked"}


@pytest.mark.anyio
async def test_the_prompts_are_those_of_the_two_agents_and_of_review(connect):
    async with connect("observer") as client:
        prompts = {prompt.name for prompt in (await client.list_prompts()).prompts}
        resources = {str(resource.uri) for resource in (await client.list_resources()).resources}
    assert {"baseline_agent", "consistency_agent", "review"} <= prompts
    assert {"bitgate://gates", "bitgate://guides/gates", "bitgate://guides/roles"} <= resources


def test_a_person_is_pointed_to_the_page_that_runs(tmp_path):
    assert where_to_sign("C1", tmp_path) == "a person runs bitgate review, or bitgate decision C1"
    (tmp_path / ADDRESS).write_text("http://127.0.0.1:8123\n", encoding="utf-8")
    assert where_to_sign("C1", tmp_path).startswith("a person opens http://127.0.0.1:8123/gates/C1")
    (tmp_path / ADDRESS).write_text("http://evil.example/\n", encoding="utf-8")
    assert "evil" not in where_to_sign("C1", tmp_path)
