"""A tool for tests: one job on the tiny engine, `pass` when it ran and its canary sang."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import anyio
from pydantic import Field, JsonValue, TypeAdapter

from bitgate.store.records import Finding
from bitgate.tools.engines.jobs import Canary, Decode, Generate, Job, Prefill
from bitgate.tools.engines.worker.sequences import write_sequences
from bitgate.tools.errors import RequestError
from bitgate.tools.registry import Tool, ToolRequest
from bitgate.tools.runs.context import RunContext
from bitgate.tools.runs.launchers import Launcher
from bitgate.tools.runs.results import JobResult


class TinyRequest(ToolRequest):
    python: str = sys.executable
    engine: str = "tiny"
    launcher: dict[str, JsonValue] = {"kind": "local"}
    options: dict[str, JsonValue] = {}
    env: dict[str, str] = {}
    timeout_s: float = 60
    jobs: int = Field(default=1, description="One after the other")
    block: str | None = Field(default=None, description="Misbehaviour of the tool itself: raise, exit, spin, sleep")


@dataclass(frozen=True)
class TinySide:
    python: str | None
    launcher: Any
    env: Mapping[str, str]
    options: Mapping[str, JsonValue]
    engine: str = "tiny"
    name: str = "tiny"


def plan(project: Any, request: TinyRequest) -> None:
    if request.timeout_s <= 0:
        raise RequestError("timeout_s", request.timeout_s, "a number above 0")


async def run(context: RunContext, request: TinyRequest) -> Finding:
    await misbehave(request.block)
    launcher = TypeAdapter(Launcher).validate_python(request.launcher)
    side = TinySide(request.python, launcher, request.env, request.options, request.engine)
    results = []
    for number in range(request.jobs):
        await context.progress(number, request.jobs, f"job {number}")
        results.append(await run_one(context, side, request.timeout_s))
    await context.progress(request.jobs, request.jobs, "comparing")
    info = results[0].ranks[0].steps["canary"].info
    seen = info["changed"] > 0 and info["not_restored"] == 0
    return Finding(
        verdict="pass" if seen else "inconclusive",
        summary=f"{len(results[0].ranks)} ranks",
        next="nothing",
        figures={
            "weights": results[0].ranks[0].weights.digest,
            "describe": dict(results[0].ranks[0].describe.stable),
            "says": [rank.describe.volatile["says"] for rank in results[0].ranks],
        },
        grade="observed",
    )


async def run_one(context: RunContext, side: TinySide, timeout_s: float) -> JobResult:
    folder = context.new_job(side)
    write_sequences(folder / "sequences.safetensors", [[1, 2], [3], [5, 6, 7]], [[4, 5, 6], [7, 8], [9]])
    every = [[0, 1], [2]]
    job = Job(
        run_id=context.run_id,
        side=side.name,
        engine=side.engine,
        model_path=str(folder),
        options=dict(side.options),
        sequences=str(folder / "sequences.safetensors"),
        steps=[
            Generate(name="generate", groups=every, max_tokens=4),
            Decode(name="decode", groups=every, company=[2]),
            Prefill(name="prefill", groups=every),
            Canary(groups=every),
        ],
        out=str(folder / "out"),
        lease=str(context.folder / "lease"),
    )
    return await context.run_job(side, job, timeout_s=timeout_s)


async def misbehave(how: str | None) -> None:
    if how == "raise":
        raise ZeroDivisionError("tiny tool")
    if how == "exit":
        raise SystemExit(0)
    if how == "spin":
        while True:
            pass
    if how == "sleep":
        await anyio.sleep_forever()


TOOL = Tool(name="tiny", title="Tiny", description="For tests", request=TinyRequest, run=run, plan=plan)
