"""The stdio server against clients and signals that break others."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from bitgate.server.stdio import request_id
from bitgate.store.store import Store
from bitgate.store.verify import verify_ledger

VERSION = "2025-06-18"
CLIENT = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
INITIALIZE = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": CLIENT}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
DISCOVER = {"jsonrpc": "2.0", "id": 90, "method": "server/discover", "params": {"_meta": META}}
LIST = {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}


class Wire:
    """A client that writes lines and reads lines, and keeps every byte that it got."""

    def __init__(self, process: Any) -> None:
        self.process, self.seen, self._rest = process, b"", b""
        self._answers: dict[int, dict[str, Any]] = {}

    def send(self, *messages: Any) -> None:
        for message in messages:
            data = message if isinstance(message, bytes) else json.dumps(message).encode()
            self.process.stdin.write(data + b"\n")
        self.process.stdin.flush()

    def answer(self, id: int, timeout: float = 30) -> dict[str, Any]:
        deadline = time.monotonic() + timeout
        while id not in self._answers and time.monotonic() < deadline:
            *lines, self._rest = (self._rest + self._read(deadline)).split(b"\n")
            self._answers |= {message["id"]: message for message in map(json.loads, lines) if "id" in message}
        if id in self._answers:
            return self._answers[id]
        raise AssertionError(f"no answer to {id}; got {self.seen[-500:]!r}")

    def _read(self, deadline: float) -> bytes:
        # Not select(), which knows no descriptor above 1023.
        poll = select.poll()
        poll.register(self.process.stdout, select.POLLIN)
        ready = poll.poll(1000 * max(0.0, deadline - time.monotonic()))
        data = os.read(self.process.stdout.fileno(), 65536) if ready else b""
        assert data or not ready, f"the server is gone: {self.process.poll()}"
        self.seen += data
        return data

    def call(self, id: int, tool: str, **arguments: Any) -> None:
        params = {"name": tool, "arguments": arguments}
        self.send({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})


@pytest.fixture
def wire(spawn: Any) -> Wire:
    return Wire(spawn("serve"))


@pytest.fixture
def opened(wire: Wire) -> Wire:
    wire.send(INITIALIZE, INITIALIZED)
    assert wire.answer(1)["result"]["serverInfo"]["name"] == "bitgate"
    return wire


def run_id_of(answer: dict[str, Any]) -> str:
    found: str = answer["result"]["structuredContent"]["run_id"]
    return found


def test_discover_then_initialize_works(wire: Wire) -> None:
    wire.send(DISCOVER)
    assert "2026-07-28" in wire.answer(90)["result"]["supportedVersions"]
    wire.send(DISCOVER, INITIALIZE, INITIALIZED, LIST)

    assert wire.answer(1)["result"]["protocolVersion"] == VERSION
    assert {"run_compare", "get_run"} <= {tool["name"] for tool in wire.answer(2)["result"]["tools"]}


def test_discover_then_a_modern_request_works(wire: Wire) -> None:
    wire.send(DISCOVER, {**LIST, "params": {"_meta": META}})

    assert wire.answer(2)["result"]["tools"]


def test_garbage_lines_are_survived(opened: Wire) -> None:
    opened.send(b"not json", b"[]", b'{"jsonrpc": "2.0", "id": 5}', b"\xff\xfe\x00", b'"\\ud800"', b"{" * 5000, b"")
    opened.send(
        b'{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"name":"run_probe","arguments":{"text":"\\ud800"}}}'
    )
    opened.send(LIST)

    assert opened.answer(2)["result"]["tools"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (rb'"\ud800"', "hex escape"),
        (b"[" * 5000 + b"]" * 5000, "recursion"),
        (b"1" + b"0" * 5000, "number"),
    ],
    ids=["lone surrogate", "deep", "long number"],
)
def test_a_request_that_cannot_be_read_is_answered_under_its_id(opened: Wire, value: bytes, words: str) -> None:
    head = b'{"jsonrpc":"2.0","id":61,"method":"tools/call","params":{"name":"run_probe","arguments":{"text":'
    opened.send(head + value + b"}}}")
    opened.send(LIST)

    error = opened.answer(61)["error"]
    assert error["code"] == -32700
    assert words in error["message"]
    assert opened.answer(2)["result"]["tools"]


@pytest.mark.parametrize(
    ("line", "id"),
    [
        (r'{"id":"a\"7","method":"x","params":{"id":5,"a":"\ud800"}}', 'a"7'),
        (r'{"params":{"method":"y","id":5,"a":"}{\ud800"},"id":-4,"method":"x"}', -4),
        (r'{"id":5,"result":"\ud800"}', None),
        (r'{"id":"\ud800","method":"x"}', None),
        (r'{"id":1.5,"method":"\ud800"}', None),
        ("{" * 5000 + '"id":1,"method":"x"', None),
        ("\\" * 100_000 + '"', None),
    ],
)
def test_the_id_of_a_request_that_no_parser_takes(line: str, id: object) -> None:
    assert request_id(line) == id


def test_every_byte_on_standard_output_is_json_rpc(opened: Wire) -> None:
    opened.call(3, "run_probe", text="a surrogate, perhaps")
    opened.call(4, "no_such_tool")
    opened.call(5, "run_probe", ends="crash")
    opened.call(6, "get_evidence", evidence_id="ev_0")
    for id in (3, 4, 5, 6):
        opened.answer(id, timeout=60)
    opened.process.stdin.close()
    opened.seen += opened.process.stdout.read()

    lines = opened.seen.splitlines()
    assert len(lines) >= 5 and all(json.loads(line)["jsonrpc"] == "2.0" for line in lines)
    assert opened.process.wait(10) == 0


def test_end_of_input_ends_the_server(opened: Wire) -> None:
    opened.process.stdin.close()

    assert opened.process.wait(10) == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("busy", [False, True])
def test_a_signal_ends_the_server_quickly(opened: Wire, number: signal.Signals, code: int, busy: bool) -> None:
    if busy:
        opened.call(3, "run_probe", seconds=60, wait_s=50)
        opened.send({**LIST, "id": 4})
        opened.answer(4)
    started = time.monotonic()
    opened.process.send_signal(number)

    assert opened.process.wait(10) == code
    assert time.monotonic() - started < 3


def test_killing_the_server_leaves_a_ledger_that_verifies_and_no_pass(opened: Wire, project: Path) -> None:
    opened.call(3, "run_probe", seconds=60, wait_s=1)
    run_id = run_id_of(opened.answer(3))
    opened.process.kill()
    opened.process.wait()

    ledger = project / ".bitgate" / "ledger.db"
    with Store.open(ledger) as store:
        run = ended(store, run_id)
        assert run.state != "finished" and run.evidence_id is None
    assert verify_ledger(ledger).ok


def ended(store: Store, run_id: str) -> Any:
    """The run once its supervisor noticed that its server is gone."""
    deadline = time.monotonic() + 20
    while (run := store.get_run(run_id)).state == "running":
        assert time.monotonic() < deadline, "the run outlived its server"
        select.select([], [], [], 0.1)
    return run


def test_a_client_that_never_reads_standard_error_blocks_nothing(opened: Wire) -> None:
    """The pipe holds 64 KiB; each of these warnings is some hundred bytes."""
    for id in range(100, 1100):
        opened.call(id, "no_such_tool_" + "x" * 200)

    for id in range(100, 1100):
        opened.answer(id, timeout=60)


def test_concurrent_calls_are_all_answered(opened: Wire) -> None:
    opened.call(3, "run_probe", seconds=3)
    started = time.monotonic()
    opened.call(4, "get_evidence")
    opened.answer(4)

    assert time.monotonic() - started < 2.5
    assert opened.answer(3)["result"]["structuredContent"]["verdict"] == "pass"


def test_a_project_without_a_configuration_is_told_so_by_the_tools(opened: Wire, project: Path) -> None:
    (project / "bitgate.toml").unlink()
    opened.call(3, "run_probe")

    result = opened.answer(3)["result"]
    assert result["isError"] and "bitgate init" in result["content"][0]["text"]


@pytest.mark.parametrize("recreated", [False, True])
def test_a_ledger_that_is_removed_while_serving_stops_reads_and_runs(
    opened: Wire, project: Path, recreated: bool
) -> None:
    ledger = project / ".bitgate" / "ledger.db"
    opened.call(3, "get_evidence")
    assert not opened.answer(3)["result"].get("isError")
    for path in ledger.parent.glob("ledger.db*"):
        path.rename(project / path.name)
    if recreated:
        Store.open(ledger).close()
    opened.call(4, "run_probe", wait_s=1)
    opened.call(5, "get_evidence")
    for id in (4, 5):
        answer = opened.answer(id)["result"]
        assert answer["isError"] and "removed or replaced" in answer["content"][0]["text"]
    assert ledger.exists() == recreated

    for path in project.glob("ledger.db*"):
        path.rename(ledger.parent / path.name)
    opened.call(6, "get_evidence")
    assert not opened.answer(6)["result"].get("isError")


def test_a_folder_that_cannot_be_made_is_said(opened: Wire, project: Path) -> None:
    opened.call(3, "get_evidence")
    opened.answer(3)
    (project / ".bitgate" / "runs").write_text("", encoding="utf-8")
    opened.call(4, "run_probe", wait_s=1)

    answer = opened.answer(4)["result"]
    assert answer["isError"] and "Make room or give access" in answer["content"][0]["text"]


def test_a_configuration_that_broke_while_serving_is_told_and_a_mended_one_is_used(opened: Wire, project: Path) -> None:
    config = project / "bitgate.toml"
    good = config.read_text(encoding="utf-8")
    config.write_text("[sid]\n", encoding="utf-8")
    opened.call(3, "run_probe")
    assert "Did you mean 'side'?" in opened.answer(3)["result"]["content"][0]["text"]

    config.write_text(good + "# mended\n", encoding="utf-8")
    opened.call(4, "run_probe")
    assert opened.answer(4)["result"]["structuredContent"]["verdict"] == "pass"
