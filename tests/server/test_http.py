"""The HTTP entry: never without a token, deaf to other hosts and origins."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from bitgate.gates import tokens
from bitgate.server.http import Address, security
from bitgate.server.tokens import credentials_from_env, credentials_from_file
from bitgate.store.store import Store
from bitgate.store.verify import verify_ledger
from bitgate.tools.errors import ConfigError

TOKEN = "a-token-of-more-than-24-characters"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
ACCEPT = {"Accept": "application/json, text/event-stream"}
GOOD = {**ACCEPT, "Authorization": f"Bearer {TOKEN}"}


def post(url: str, headers: dict[str, str]) -> httpx2.Response:
    with httpx2.Client(timeout=30) as client:
        return client.post(url, json=INITIALIZE, headers=headers)


def test_only_a_known_token_from_an_allowed_host_and_origin_gets_in(http_url: str) -> None:
    assert post(http_url, GOOD).status_code == 200
    assert post(http_url, {**GOOD, "Origin": "http://localhost:3000"}).status_code == 200

    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {TOKEN}"},
    ):
        refused = post(http_url, {**ACCEPT, **headers})
        assert refused.status_code == 401 and TOKEN not in refused.text
    assert post(http_url, {**GOOD, "Host": "evil.example"}).status_code == 421
    assert post(http_url, {**GOOD, "Origin": "https://evil.example"}).status_code == 403


@pytest.mark.anyio
async def test_what_a_client_starts_is_written_under_its_tokens_name(connect_http: Any, project: Path) -> None:
    async with connect_http() as client:
        await client.call_tool("run_probe", {})

    with Store.open(project / ".bitgate" / "ledger.db") as store:
        assert [run.actor for run in store.list_runs()] == ["consistency:env"]


@pytest.mark.anyio
async def test_a_token_added_to_the_ledger_works_at_once_and_a_revoked_one_no_more(
    http_url: str, project: Path
) -> None:
    with Store.open(project / ".bitgate" / "ledger.db") as store:
        headers = {**ACCEPT, "Authorization": f"Bearer {tokens.new_token()}"}
        assert post(http_url, headers).status_code == 401
        headers["Authorization"] = f"Bearer {tokens.add(store, 'agent', 'consistency')}"
        assert post(http_url, headers).status_code == 200
        tokens.revoke(store, "agent")
        assert post(http_url, headers).status_code == 401


@pytest.mark.anyio
@pytest.mark.attack
async def test_a_row_that_raises_a_tokens_role_is_believed_by_no_server(
    http_url: str, project: Path, client_of: Any
) -> None:
    with Store.open(project / ".bitgate" / "ledger.db") as store:
        token = tokens.add(store, "looker", "observer")
        raised = {"name": "looker", "role": "consistency", "digest": tokens.token_digest(token), "revoked": False}
        store.append("token", "looker", raised, "person:x")
        store.append("token", "other", {"name": "no role and no digest"}, "person:x")
    async with client_of(http_url, token=token) as client:
        answer = await client.call_tool("run_probe", {})
    assert answer.is_error and "role observer may read" in answer.content[0].text


def test_a_server_without_a_token_does_not_start(bitgate: Any, server_env: dict[str, str]) -> None:
    server_env.pop("BITGATE_TOKEN", None)
    done = bitgate("serve", "--http", "--port", "0", env=server_env)

    assert done.returncode == 2 and "at least one token" in done.stderr


def test_a_port_in_use_is_named(bitgate: Any, http_url: str, server_env: dict[str, str]) -> None:
    port = http_url.split(":")[2].split("/")[0]
    done = bitgate("serve", "--http", "--port", port, env={**server_env, "BITGATE_TOKEN": TOKEN})

    assert done.returncode == 2 and f"cannot listen on 127.0.0.1:{port}" in done.stderr


def test_a_signal_ends_it(spawn: Any, server_env: dict[str, str]) -> None:
    process = spawn("serve", "--http", "--port", "0", env={**server_env, "BITGATE_TOKEN": TOKEN})
    url = process.stderr.readline().split()[-1].decode()
    assert post(url, GOOD).status_code == 200
    process.send_signal(signal.SIGTERM)

    assert process.wait(10) in (-signal.SIGTERM, 143)


def test_tokens_come_from_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# clients\nalice {TOKEN}\n\n{TOKEN}2\n", encoding="utf-8")
    path.chmod(0o600)

    assert [credential.name for credential in credentials_from_file(path)] == ["alice", "token-4"]
    assert credentials_from_env({}) == []


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        (TOKEN, 0o644, "chmod 600"),
        ("short", 0o600, "at least 24"),
        (f"a b {TOKEN}", 0o600, "NAME TOKEN"),
    ],
)
def test_a_token_file_that_is_no_secret_is_refused(tmp_path: Path, text: str, mode: int, words: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)

    with pytest.raises(ConfigError, match=words) as caught:
        credentials_from_file(path)
    assert TOKEN not in str(caught.value)


def test_a_public_address_answers_only_to_names_it_was_told() -> None:
    settings = security(Address("10.0.0.5", 8765, ("bitgate.example",)))

    assert settings.enable_dns_rebinding_protection
    assert {"bitgate.example", "bitgate.example:*", "10.0.0.5:*"} <= set(settings.allowed_hosts)
    assert "*" not in settings.allowed_hosts and not any(host.startswith("*") for host in settings.allowed_hosts)


@pytest.mark.anyio
async def test_two_servers_and_eight_clients_append_at_once(start_http: Any, client_of: Any, project: Path) -> None:
    made: list[str] = []

    async def append(url: str) -> None:
        async with client_of(url) as client:
            for _ in range(2):
                result = await client.call_tool("run_probe", {"wait_s": 55})
                assert not result.is_error, result.content
                made.append(result.structured_content["evidence_id"])

    async with anyio.create_task_group() as tasks:
        for url in [start_http(), start_http()] * 4:
            tasks.start_soon(append, url)

    ledger = project / ".bitgate" / "ledger.db"
    with Store.open(ledger) as store:
        assert {evidence.id for evidence in store.list_evidence(limit=100)} == set(made)
    assert len(set(made)) == 16 and verify_ledger(ledger).ok
