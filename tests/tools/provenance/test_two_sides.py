"""Two sides: the files of the first are hashed while the second one's engine starts."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.to_thread
import pytest

from bitgate.tools.check_provenance import ProvenanceRequest
from bitgate.tools.provenance import run


def test_the_first_sides_files_are_hashed_while_the_second_side_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    second_runs, first_is_hashed = threading.Event(), threading.Event()

    async def run_side(_: Any, side: Any, *rest: Any) -> Any:
        if side.name == "second":
            second_runs.set()
            assert await anyio.to_thread.run_sync(first_is_hashed.wait, 20), "hashed before this side has ended"
        return SimpleNamespace(ranks=[None])

    def examine(_: Any, side: Any, result: Any) -> str:
        if side.name == "first":
            assert second_runs.wait(20), "not before the next engine starts"
            first_is_hashed.set()
        return f"{side.name} looked at"

    async def progress(done: float, total: float, message: str) -> None:
        told.append(message)

    told: list[str] = []
    for function, stand_in in (
        ("_run_side", run_side),
        ("_examine", examine),
        ("side_record", lambda side, *rest: side.name),
        ("model_record", lambda *rest: None),
        ("axes_of", lambda *rest: ()),
        ("adapter_of", lambda engine: None),
        ("_conclude", lambda context, looked: {name: item.found for name, item in looked.items()}),
    ):
        monkeypatch.setattr(run, function, stand_in)
    project = SimpleNamespace(
        side=lambda name: SimpleNamespace(name=name, model=None, engine="vllm"), model=lambda name: None
    )
    context: Any = SimpleNamespace(project=project, progress=progress)
    found: Any = anyio.run(run.run_provenance, context, ProvenanceRequest(side="first", other="second"))
    assert list(found.items()) == [("first", "first looked at"), ("second", "second looked at")]
    assert told == ["first: running", "second: running", "hashing and checking"]
