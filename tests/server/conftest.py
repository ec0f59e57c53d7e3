"""A project, and real server processes over it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import anyio
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters

BROUGHT = Path(__file__).parent / "brought"
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


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "bitgate.toml").write_text(CONFIG, encoding="utf-8")
    return tmp_path


def server_env(**extra: str) -> dict[str, str]:
    paths = [str(BROUGHT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **extra}


def command(project: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "bitgate.server", "--project", str(project), *words]


class Connect(Protocol):
    def __call__(self, mode: Any = "auto") -> AbstractAsyncContextManager[Client]: ...


@pytest.fixture
def connect(project: Path) -> Connect:
    """Starts a real server on stdio and connects a real client to it."""

    @asynccontextmanager
    async def session(mode: Any = "auto") -> AsyncIterator[Client]:
        args = command(project, "serve")
        parameters = StdioServerParameters(command=args[0], args=args[1:], env=server_env(), cwd=str(project))
        with anyio.fail_after(60):
            async with Client(parameters, mode=mode) as client:
                yield client

    return session


class Bitgate(Protocol):
    def __call__(self, *words: str, **keywords: Any) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def bitgate(project: Path) -> Bitgate:
    """Runs the command line on the project."""

    def run(*words: str, timeout: float = 60, **keywords: Any) -> subprocess.CompletedProcess[str]:
        keywords.setdefault("env", server_env())
        return subprocess.run(
            command(project, *words), capture_output=True, encoding="utf-8", timeout=timeout, check=False, **keywords
        )

    return run


Process = subprocess.Popen[bytes]


class Spawn(Protocol):
    def __call__(self, *words: str, env: dict[str, str] | None = None) -> Process: ...


@pytest.fixture
def spawn(project: Path) -> Iterator[Spawn]:
    """Starts processes whose pipes the test holds itself; they are gone afterwards."""
    started: list[Process] = []

    def start(*words: str, env: dict[str, str] | None = None) -> Process:
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command(project, *words), stdin=pipe, stdout=pipe, stderr=pipe, env=env or server_env()))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()
