"""Listening for the review page: loopback alone, one link."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from bitgate.server.gate_answers import ADDRESS
from bitgate.server.review.app import build_app
from bitgate.server.review.desk import Desk
from bitgate.server.review.guard import Door
from bitgate.tools.errors import ConfigError


@contextmanager
def listening(port: int) -> Iterator[tuple[socket.socket, Door, str]]:
    """The socket, the door, and the link that opens it."""
    try:
        bound = socket.create_server(("127.0.0.1", port), backlog=64)
    except OSError as error:
        raise ConfigError(f"cannot listen on 127.0.0.1:{port}: {error.strerror}; choose another --port") from error
    with bound:
        chosen = bound.getsockname()[1]
        door = Door(frozenset({f"127.0.0.1:{chosen}", f"localhost:{chosen}"}))
        yield bound, door, f"http://127.0.0.1:{chosen}/enter?token={door.link}"


@contextmanager
def announced(state: Path, bound: socket.socket) -> Iterator[None]:
    """While the page runs its address, without the link's token, lies beside the ledger: tools point a person to it."""
    note = state / ADDRESS
    note.write_text(f"http://127.0.0.1:{bound.getsockname()[1]}\n", encoding="utf-8")
    try:
        yield
    finally:
        note.unlink(missing_ok=True)


def serve(desk: Desk, door: Door, bound: socket.socket) -> None:
    """Until interrupted."""
    config = uvicorn.Config(build_app(desk, door), log_config=None, access_log=False, ws="none", server_header=False)
    with announced(desk.session.project.state, bound):
        uvicorn.Server(config).run(sockets=[bound])
