from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bitgate.store import Store
from bitgate.store.records import Evidence, Finding

WRITER = Path(__file__).with_name("writer.py")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / ".bitgate" / "ledger.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store.open(path) as opened:
        yield opened


@pytest.fixture
def finding() -> Callable[..., Finding]:
    def make(**given: Any) -> Finding:
        values = {"verdict": "pass", "summary": "4096 rows are equal", "next": "submit_gate C3", "grade": "observed"}
        return Finding.model_validate(values | given)

    return make


@pytest.fixture
def finished(store: Store, finding: Callable[..., Finding]) -> Callable[..., Evidence]:
    """Runs a tool to its end and returns the evidence."""

    def make(tool: str = "run_compare", **given: Any) -> Evidence:
        run = store.start_run(tool, {"check": given.get("check")}, "agent")
        evidence = store.finish_run(run.id, "finished", finding=finding(**given))
        assert evidence is not None
        return evidence

    return make


@pytest.fixture
def writers() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts processes that run tests/store/writer.py, and ends those that are left."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, str(WRITER), *map(str, arguments)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
