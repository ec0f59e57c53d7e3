"""The review page over a real ledger, served on a real socket, and a real Chromium to look at it."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from gate_world import new_world, signers, ssh_keys

from bitgate.gates.today import Today
from bitgate.server.review.app import build_app
from bitgate.server.review.desk import ChainWatch, Desk
from bitgate.server.review.guard import Door
from bitgate.server.review.serving import listening
from bitgate.server.session import Session, Workplace

CONFIG = """
[model.tiny]
path = "tiny"
[side.rollout]
engine = "python"
python = "python3"
module = "mine.py"
[policy]
updates_per_step = 1
"""


__all__ = ["new_world", "signers", "ssh_keys"]


class WorldDesk(Desk):
    """A desk whose today is the test's."""

    world: Any

    def today(self) -> Today:
        today: Today = self.world.today
        return today


@dataclass
class Served:
    """A page that is listening."""

    desk: WorldDesk
    door: Door
    url: str
    world: Any
    clients: list[httpx2.Client]

    @property
    def base(self) -> str:
        return self.url.partition("/enter")[0]

    def client(self) -> httpx2.Client:
        """A client that came through the link."""
        client = httpx2.Client(base_url=self.base, timeout=30)
        self.clients.append(client)
        assert client.get(self.url.removeprefix(self.base)).status_code == 303
        return client


@pytest.fixture
def world(new_world: Callable[..., Any], tmp_path: Path, signers: str) -> Any:
    (tmp_path / "bitgate.toml").write_text(CONFIG, encoding="utf-8")
    return new_world(tmp_path / ".bitgate" / "ledger.db", signers)


@pytest.fixture
def serve(world: Any, tmp_path: Path, signers: str) -> Iterator[Callable[..., Served]]:
    clients: list[httpx2.Client] = []
    running: list[tuple[uvicorn.Server, threading.Thread, Any]] = []

    def start(key: Path | None = None, clock: Callable[[], float] | None = None) -> Served:
        desk = WorldDesk(
            Session(Workplace(tmp_path), "cli", "observer"), ChainWatch(world.store.ledger.path, signers), key
        )
        desk.world = world
        opened = listening(0)
        socket, door, url = opened.__enter__()
        if clock is not None:
            door = Door(door.hosts, clock, door.link)
        config = uvicorn.Config(build_app(desk, door), log_config=None, access_log=False, ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]}, daemon=True)
        thread.start()
        running.append((server, thread, opened))
        return Served(desk, door, url, world, clients)

    yield start
    for client in clients:
        client.close()
    for server, thread, opened in running:
        server.should_exit = True
        thread.join(10)
        opened.__exit__(None, None, None)


@pytest.fixture
def served(serve: Callable[..., Served]) -> Served:
    return serve()


def chromium_path() -> str | None:
    named = os.environ.get("BITGATE_CHROMIUM")
    return named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


# Not for the session: while Playwright runs, no other event loop can in this thread.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for a module's tests; each gets its own context."""
    from playwright.sync_api import sync_playwright

    path = chromium_path()
    if path is None:
        pytest.fail("no Chromium: install one (Debian: apt-get install chromium) or name it in BITGATE_CHROMIUM")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()
