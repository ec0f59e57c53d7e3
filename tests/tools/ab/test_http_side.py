"""Load on a running server over HTTP, against a small one on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from bitgate.tools.ab.conduct import Call, LoadPlan, conduct, planned
from bitgate.tools.ab.http_side import Endpoint, HttpSide
from bitgate.tools.ab.samples import Turn
from bitgate.tools.config.workloads import TokenSequence
from bitgate.tools.engines.jobs import Sampling
from bitgate.tools.errors import WorkerError

REQUESTS = 6
TOKENS = 4


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: Any

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        answers = {"/v1/models": {"data": [{"id": "tiny"}]}, "/version": {"version": "0.32.0"}}
        self._answer(200, json.dumps(answers[self.path]).encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/reset_prefix_cache":
            self.state.resets += 1
            self._answer(self.state.reset_status, b"")
            return
        with self.state.lock:
            self.state.asked.append(json.loads(body))
            number = len(self.state.asked)
        if self.state.fail_every and number % self.state.fail_every == 0:
            self._answer(500, b"overloaded")
            return
        self._stream(json.loads(body)["max_tokens"] - self.state.short)

    def _stream(self, count: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for index in range(count):
            self._event({"choices": [{"text": "", "token_ids": [index]}]})
        self._event({"choices": [], "usage": {"completion_tokens": count}})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _event(self, event: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[Any]:
    state = SimpleNamespace(asked=[], resets=0, reset_status=200, fail_every=0, short=0, lock=threading.Lock())
    handler = type("Bound", (Handler,), {"state": state})
    running = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{running.server_address[1]}"
    yield state
    running.shutdown()
    running.server_close()
    thread.join()


PLAN = LoadPlan(tuple(TokenSequence((1, 2, i)) for i in range(REQUESTS)), TOKENS, Sampling())


def side(url: str, folder: Path) -> HttpSide:
    return HttpSide(SimpleNamespace(name="served"), PLAN, folder, Endpoint.of(url))  # type: ignore[arg-type]


def turns(url: str, folder: Path, calls: list[Call] | None = None) -> tuple[HttpSide, list[Turn]]:
    async def run() -> tuple[HttpSide, list[Turn]]:
        made = side(url, folder)
        await made.start()
        score = await conduct({"a": made, "b": made}, calls or planned(1, 0, 1, 0), 0.0)
        return made, score.turns

    return anyio.run(run)


def test_every_turn_serves_the_same_prompts_with_forced_lengths(server: Any, tmp_path: Path) -> None:
    made, done = turns(server.url, tmp_path)
    assert [turn.phase for turn in done] == ["warm_up"] * 2 + ["measured"] * 4
    assert all(turn.record.output_tokens == (TOKENS,) * REQUESTS for turn in done)
    assert all(turn.latencies is not None and turn.latencies.ordered and turn.rate > 0 for turn in done)
    prompts = sorted(tuple(body["prompt"]) for body in server.asked)
    assert prompts == sorted([(1, 2, i) for i in range(REQUESTS)] * 6)
    assert all(body["ignore_eos"] and body["min_tokens"] == body["max_tokens"] == TOKENS for body in server.asked)
    assert made.stable["server"] == {"model": "tiny", "version": "0.32.0"}
    assert (server.resets, made.resets) == (6, True)


def test_a_server_that_cannot_empty_its_cache_is_noted(server: Any, tmp_path: Path) -> None:
    server.reset_status = 404
    made, _ = turns(server.url, tmp_path)
    assert (server.resets, made.resets) == (1, False)


def test_requests_that_fail_are_counted_with_their_words(server: Any, tmp_path: Path) -> None:
    server.fail_every = 9
    _, done = turns(server.url, tmp_path)
    assert sum(turn.record.failed for turn in done) == 4
    assert next(text for turn in done for text in turn.record.failures) == "status 500: overloaded"


def test_a_server_that_stops_early_shows_in_the_counts(server: Any, tmp_path: Path) -> None:
    server.short = 1
    _, done = turns(server.url, tmp_path)
    assert {turn.record.output_tokens for turn in done} == {(TOKENS - 1,) * REQUESTS}


def test_nobody_there_is_said_before_anything_runs(tmp_path: Path) -> None:
    async def start() -> None:
        await side("http://127.0.0.1:9", tmp_path).start()

    with pytest.raises(WorkerError, match="no OpenAI server answers") as caught:
        anyio.run(start)
    assert caught.value.code == "server_unreachable"


@pytest.mark.parametrize("url", ["ftp://x", "localhost:80", "http://", ""])
def test_only_http_addresses_are_taken(url: str) -> None:
    with pytest.raises(ValueError, match="allowed: http://HOST:PORT"):
        Endpoint.of(url)
