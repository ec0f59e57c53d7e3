"""A project, and real servers and clients over it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import anyio
import httpx2
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

BROUGHT = Path(__file__).parent / "brought"
TOKEN = "a-token-of-more-than-24-characters"
CONFIG = """
[model.tiny]
path = "tiny"

[side.rollout]
engine = "python"
python = "python3"
module = "mine.py"

[workload.short]
max_tokens = 4
[workload.short.generator]
count = 2
length = 3
"""

Process = subprocess.Popen[bytes]
Bitgate = Callable[..., subprocess.CompletedProcess[str]]


class Spawn(Protocol):
    def __call__(self, *words: str, env: dict[str, str] | None = None) -> Process: ...


class Connect(Protocol):
    def __call__(self, mode: Any = "auto") -> AbstractAsyncContextManager[Client]: ...


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "bitgate.toml").write_text(CONFIG, encoding="utf-8")
    return tmp_path


@pytest.fixture
def server_env() -> dict[str, str]:
    """The environment of servers under test: the tests' own tools are in their registry."""
    paths = [str(BROUGHT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def command(project: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "bitgate.server", "--project", str(project), *words]


@pytest.fixture
def connect(project: Path, server_env: dict[str, str]) -> Connect:
    """Starts a real server on stdio and connects a real client to it."""

    @asynccontextmanager
    async def session(mode: Any = "auto") -> AsyncIterator[Client]:
        args = command(project, "serve")
        parameters = StdioServerParameters(command=args[0], args=args[1:], env=server_env, cwd=str(project))
        with anyio.fail_after(60):
            async with Client(parameters, mode=mode) as client:
                yield client

    return session


def _heed_interrupts() -> None:
    """A suite that runs in the background hands down that SIGINT is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def spawn(project: Path, server_env: dict[str, str]) -> Iterator[Spawn]:
    """Starts processes whose pipes the test holds itself; they are gone afterwards."""
    started: list[Process] = []

    def start(*words: str, env: dict[str, str] | None = None) -> Process:
        pipe = subprocess.PIPE
        full = command(project, *words)
        process = subprocess.Popen(
            full, stdin=pipe, stdout=pipe, stderr=pipe, env=env or server_env, preexec_fn=_heed_interrupts
        )
        started.append(process)
        return started[-1]

    yield start
    for process in started:
        process.kill()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        process.wait()


@pytest.fixture
def start_http(spawn: Spawn, server_env: dict[str, str]) -> Callable[[], str]:
    """Starts a real server on HTTP that knows TOKEN; its URL."""

    def start() -> str:
        process = spawn("serve", "--http", "--port", "0", env={**server_env, "BITGATE_TOKEN": TOKEN})
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(rb"http://\S+", line)
        assert found is not None, line + process.stderr.read()
        return found[0].decode()

    return start


@pytest.fixture
def http_url(start_http: Callable[[], str]) -> str:
    return start_http()


@pytest.fixture
def client_of() -> Callable[..., AbstractAsyncContextManager[Client]]:
    """Connects a real client to an HTTP server."""

    @asynccontextmanager
    async def session(url: str, mode: Any = "auto", token: str = TOKEN) -> AsyncIterator[Client]:
        async with AsyncExitStack() as stack:
            stack.enter_context(anyio.fail_after(120))
            headers = {"Authorization": f"Bearer {token}"}
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=60))
            yield await stack.enter_async_context(Client(streamable_http_client(url, http_client=http), mode=mode))

    return session


@pytest.fixture
def connect_http(http_url: str, client_of: Any) -> Connect:
    def session(mode: Any = "auto") -> AbstractAsyncContextManager[Client]:
        connected: AbstractAsyncContextManager[Client] = client_of(http_url, mode)
        return connected

    return session


@pytest.fixture(params=["stdio", "http"])
def connect_any(request: pytest.FixtureRequest) -> Connect:
    """The same client over both transports."""
    fixture: Connect = request.getfixturevalue("connect" if request.param == "stdio" else "connect_http")
    return fixture


@pytest.fixture
def bitgate(project: Path, server_env: dict[str, str]) -> Bitgate:
    """Runs the command line on the project."""

    def run(*words: str, **keywords: Any) -> subprocess.CompletedProcess[str]:
        keywords = {"env": server_env, "timeout": 60, "encoding": "utf-8", "capture_output": True, **keywords}
        return subprocess.run(command(project, *words), check=False, **keywords)

    return run
