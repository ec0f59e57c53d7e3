"""Service mode is real: bitgate runs as one user, the agent as another on the same machine, with a shell and one token.

Everything an agent could try on the files, the process and the service is tried; what is asked for is refused, and
the ledger verifies afterwards.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from bitgate.gates import reviewers, tokens
from bitgate.gates.verify import verify
from bitgate.store import Store

SERVICE, AGENT = 64001, 64002
CONFIG = """
[side.rollout]
engine = "python"
python = "python3"
module = "mine.py"
[side.baseline]
engine = "python"
python = "python3"
module = "mine.py"
[policy]
updates_per_step = 1
"""
SIGNERS = "rosa ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEuKmOTJL67ywWuMivuFVzv7QiyNpYLlSx1vS8DQnj0\n"


def as_user(uid: int, *capabilities: str) -> list[str]:
    """Becomes another user for good; a capability only to read an interpreter that lies in somebody's home."""
    raised = ["--inh-caps", ",".join(capabilities), "--ambient-caps", ",".join(capabilities)] if capabilities else []
    return ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups", *raised]


@dataclass
class Service:
    url: str
    root: Path
    process: subprocess.Popen[str]
    tokens: dict[str, str]
    head: str


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("becoming two users needs root and setpriv")
    folder = Path(tempfile.mkdtemp(prefix="bitgate-service-"))
    root = folder / "project"
    root.mkdir()
    (root / "bitgate.toml").write_text(CONFIG, encoding="utf-8")
    made = {}
    with Store.open(root / ".bitgate" / "ledger.db") as store:
        reviewers.found(store, SIGNERS, "person:rosa")
        made = {role: tokens.add(store, role, role, "person:rosa") for role in ("baseline", "consistency", "observer")}
        store.artifacts.put_bytes(b"figures", name="figures.txt", media_type="text/plain")
        head = store.head().hash
    for path in [root, *root.rglob("*")]:
        os.chown(path, SERVICE, SERVICE)
    folder.chmod(0o711)
    root.chmod(0o700)
    command = [
        *as_user(SERVICE, "+dac_read_search"),
        sys.executable,
        "-m",
        "bitgate.server",
        "--project",
        str(root),
        "serve",
        "--http",
        "--port",
        "0",
    ]
    environment = {**os.environ, "HOME": str(root), "SECRET_OF_THE_SERVICE": "s3cret"}
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, cwd="/", env=environment, encoding="utf-8"
    ) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://\S+", line)
        assert found, line + process.stderr.read()
        yield Service(found[0], root, process, made, head)
        process.send_signal(signal.SIGTERM)
        process.wait(10)
    shutil.rmtree(folder)


SHELL = r"""
import ctypes, json, os, signal, socket, sqlite3, sys
root, pid = sys.argv[1], int(sys.argv[2])
state = root + "/.bitgate"
ledger = state + "/ledger.db"
def sql(statement):
    c = sqlite3.connect(ledger); c.execute(statement); c.commit()
def trace():
    if ctypes.CDLL(None).ptrace(16, pid, 0, 0):
        raise PermissionError
def write(path):
    with open(path, "w") as f: f.write("x")
attempts = {
    "list the project": lambda: os.listdir(root),
    "read the configuration": lambda: open(root + "/bitgate.toml").read(),
    "edit the configuration": lambda: write(root + "/bitgate.toml"),
    "add a fragment of configuration": lambda: (os.mkdir(root + "/bitgate.d"), write(root + "/bitgate.d/x.toml")),
    "read the ledger": lambda: open(ledger, "rb").read(16),
    "open the ledger with SQLite": lambda: sql("SELECT * FROM entries"),
    "insert a row": lambda: sql("INSERT INTO entries VALUES (99,'','','','','','','')"),
    "drop a trigger": lambda: sql("DROP TRIGGER entries_no_update"),
    "read the write-ahead log": lambda: open(ledger + "-wal", "rb").read(1),
    "truncate the ledger": lambda: os.truncate(ledger, 0),
    "delete the ledger": lambda: os.unlink(ledger),
    "rename the ledger": lambda: os.rename(ledger, "/tmp/stolen.db"),
    "link the ledger elsewhere": lambda: os.link(ledger, "/tmp/linked.db"),
    "chmod the ledger": lambda: os.chmod(ledger, 0o666),
    "chown the ledger": lambda: os.chown(ledger, os.getuid(), os.getgid()),
    "replace the state by a link": lambda: (os.rename(state, state + "2"), os.symlink("/tmp", state)),
    "replace the project": lambda: os.rename(root, root + "2"),
    "list artifacts": lambda: os.listdir(state + "/artifacts"),
    "swap an artifact": lambda: write(state + "/artifacts/x"),
    "plant a run": lambda: os.makedirs(state + "/runs/run_00000000000000000000"),
    "kill the server": lambda: os.kill(pid, signal.SIGKILL),
    "stop the server": lambda: os.kill(pid, signal.SIGSTOP),
    "read the server's environment": lambda: open(f"/proc/{pid}/environ").read(),
    "read the server's memory": lambda: open(f"/proc/{pid}/mem", "rb").read(1),
    "read the server's open files": lambda: os.listdir(f"/proc/{pid}/fd"),
    "enter the server's folder": lambda: os.listdir(f"/proc/{pid}/cwd/../proc/{pid}/root/" + root),
    "trace the server": trace,
    "become the service's user": lambda: os.setuid(int(sys.argv[3])),
    "become root": lambda: os.setuid(0),
}
done = {}
for name, attempt in attempts.items():
    try:
        attempt()
        done[name] = "succeeded"
    except (OSError, sqlite3.Error) as error:
        done[name] = "refused"
print(json.dumps(done))
"""


@pytest.fixture(scope="module")
def tried(service: Service) -> dict[str, str]:
    """What the agent's shell got."""
    python = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
    command = [*as_user(AGENT), python, "-c", SHELL, str(service.root), str(service.process.pid), str(SERVICE)]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=True, encoding="utf-8")
    found: dict[str, str] = json.loads(done.stdout)
    return found


ATTEMPTS = re.findall(r'^    "([^"]+)": (?:lambda|trace)', SHELL, re.MULTILINE)


@pytest.mark.parametrize("attempt", ATTEMPTS)
@pytest.mark.attack
def test_the_agents_shell_may_not(attempt, tried):
    assert tried[attempt] == "refused"


def test_both_are_really_other_users(service):
    status = Path(f"/proc/{service.process.pid}/status").read_text(encoding="utf-8")
    assert f"Uid:\t{SERVICE}\t{SERVICE}\t{SERVICE}\t{SERVICE}" in status


async def call(service: Service, role: str, tool: str, arguments: dict[str, Any]) -> tuple[bool, str]:
    headers = {"Authorization": f"Bearer {service.tokens[role]}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=30) as http,
        Client(streamable_http_client(service.url, http_client=http)) as client,
    ):
        result = await client.call_tool(tool, arguments)
        return bool(result.is_error), result.content[0].text


OVER_HTTP: list[tuple[str, str, dict[str, Any]]] = [
    ("observer", "submit_gate", {"gate": "C0"}),
    ("observer", "propose_baseline", {}),
    ("observer", "run_compare", {"check": "batch"}),
    ("observer", "cancel_run", {"run_id": "run_" + "0" * 20}),
    ("consistency", "submit_gate", {"gate": "C1"}),
    ("consistency", "propose_baseline", {}),
    ("consistency", "run_compare", {"check": "batch", "side": "baseline"}),
    ("consistency", "run_compare", {"check": "batch", "captures": {"reference": "/etc", "x": "/etc"}}),
    ("consistency", "submit_gate", {"gate": "C0", "role": "baseline"}),
    ("consistency", "submit_gate", {"gate": "C0", "actor": "person:rosa"}),
    ("consistency", "submit_gate", {"gate": "C11"}),
    ("baseline", "submit_gate", {"gate": "C5"}),
    ("baseline", "run_compare", {"check": "batch", "side": "rollout"}),
    ("baseline", "propose_baseline", {"tuning": ["ev_00000000000000000000"]}),
]  # fmt: skip


@pytest.mark.parametrize(("role", "tool", "arguments"), OVER_HTTP)
@pytest.mark.attack
def test_the_token_does_not_allow(service, role, tool, arguments):
    refused, words = anyio.run(lambda: call(service, role, tool, arguments))
    assert refused, words


@pytest.mark.parametrize("token", ["x", "bg_" + "a" * 52, "Bearer", "null"])
@pytest.mark.attack
def test_without_a_token_of_the_ledger_nothing_answers(service, token):
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/json, text/event-stream"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    assert httpx2.post(service.url, json=body, headers=headers).status_code == 401


def test_what_a_token_may_is_recorded_under_its_role_and_name(service):
    refused, words = anyio.run(lambda: call(service, "consistency", "submit_gate", {"gate": "C0"}))
    assert not refused, words
    with Store.open(service.root / ".bitgate" / "ledger.db") as store:
        assert next(store.entries(kind="gate")).actor == "consistency:consistency"


@pytest.mark.attack
def test_the_secret_of_the_service_is_in_no_answer(service):
    for tool in ("get_gates", "get_evidence"):
        assert "s3cret" not in anyio.run(lambda tool=tool: call(service, "observer", tool, {}))[1]


def test_afterwards_the_ledger_verifies_and_its_pinned_head_is_in_it(service, tried):
    found = verify(service.root / ".bitgate" / "ledger.db", head=service.head, reviewers=SIGNERS)
    assert found.problems == []
