"""Stands between a client and a real server on loopback, and does to its requests what the path asks for."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any, ClassVar

FAILS_EVERY = 33


class Between(BaseHTTPRequestHandler):
    """`/flaky`: every 33rd completion is refused. `/short`: a token less. `/slow`: each is served twice."""

    protocol_version = "HTTP/1.1"
    target: ClassVar[tuple[str, int]]
    numbers: ClassVar[Iterator[int]]

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._hand_on(b"")

    def do_POST(self) -> None:
        self._hand_on(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def _hand_on(self, body: bytes) -> None:
        kind, path = self.path.split("/", 2)[1:]
        if path == "v1/completions":
            if kind == "flaky" and next(self.numbers) % FAILS_EVERY == 0:
                self._refuse()
                return
            if kind == "slow":
                answer, connection = self._ask(path, body)
                answer.read()
                connection.close()
            body = _shorter(body) if kind == "short" else body
        answer, connection = self._ask(path, body)
        self.send_response(answer.status)
        self.send_header("Connection", "close")
        self.end_headers()
        while data := answer.read1(65536):
            self.wfile.write(data)
        connection.close()
        self.close_connection = True

    def _ask(self, path: str, body: bytes) -> tuple[http.client.HTTPResponse, http.client.HTTPConnection]:
        connection = http.client.HTTPConnection(*self.target, timeout=60)
        connection.request(self.command, f"/{path}", body or None, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer, connection

    def _refuse(self) -> None:
        self.send_response(503)
        self.send_header("Content-Length", "10")
        self.end_headers()
        self.wfile.write(b"overloaded")


def _shorter(body: bytes) -> bytes:
    asked = json.loads(body)
    return json.dumps({**asked, "max_tokens": asked["max_tokens"] - 1, "min_tokens": 1}).encode()


@contextmanager
def standing_between(host: str, port: int) -> Iterator[str]:
    handler = type("Bound", (Between,), {"target": (host, port), "numbers": count(1)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
