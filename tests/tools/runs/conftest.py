from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bitgate.tools.config.project import Project

TINY = Path(__file__).parent / "tiny"
sys.path.insert(0, str(TINY))

import tiny_setup  # noqa: E402
from tiny_runs import Ended, run_to_end  # noqa: E402


@pytest.fixture(autouse=True, scope="module")
def tiny_tool() -> Iterator[None]:
    undo = tiny_setup.install()
    yield
    undo()


@pytest.fixture
def make_project(tmp_path: Path) -> Callable[..., Project]:
    def make(**policy: object) -> Project:
        lines = ["[policy]", *(f"{name} = {value!r}" for name, value in {"disk_reserve": 0, **policy}.items())]
        (tmp_path / "bitgate.toml").write_text("\n".join(lines), encoding="utf-8")
        return Project.load(tmp_path)

    return make


@pytest.fixture
def project(make_project: Callable[..., Project]) -> Project:
    return make_project()


@pytest.fixture
def run_tiny() -> Callable[..., Ended]:
    """Starts a run of the tiny tool and waits for its end."""

    return run_to_end
