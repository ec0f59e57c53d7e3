"""A tool that takes as long and finds what it is told: what the server does around runs is tested with it."""

from __future__ import annotations

from typing import Any, Literal

import anyio
from pydantic import Field

from bitgate.store.records import Finding, Reason, Verdict
from bitgate.tools.config.project import Project
from bitgate.tools.errors import RequestError, WorkerError
from bitgate.tools.registry import Tool, ToolRequest
from bitgate.tools.runs.context import RunContext


class ProbeRequest(ToolRequest):
    side: str | None = Field(default=None, description="A configured side")
    seconds: float = Field(default=0.0, ge=0, le=600, description="How long the run takes")
    steps: int = Field(default=10, ge=1, le=1000, description="Progress notes")
    verdict: Verdict = Field(default="pass", description="What it finds")
    figures: dict[str, Any] = Field(default={}, description="Figures to report")
    items: int = Field(default=0, ge=0, description="Length of a list figure")
    text: str = Field(default="as told", description="The summary")
    ends: Literal["finding", "worker_error", "crash"] = Field(default="finding", description="How it ends")


def plan(project: Project, request: ProbeRequest) -> None:
    if request.side is not None:
        project.side(request.side)
    if request.text == "refused":
        raise RequestError("text", request.text, "any other text", "Say something else.")


async def run(ctx: RunContext, request: ProbeRequest) -> Finding:
    for step in range(request.steps):
        await ctx.progress(step, request.steps, f"step {step}")
        await anyio.sleep(request.seconds / request.steps)
    if request.ends == "crash":
        raise ZeroDivisionError("a defect")
    if request.ends == "worker_error":
        raise WorkerError("engine_exited", "rank 0 exited with 7", "last words\nHF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz")
    artifact = ctx.artifacts.put_bytes(b"sequence,token\n0,1\n", name="rows.csv", media_type="text/csv")
    figures = {**request.figures, **({"list": list(range(request.items))} if request.items else {})}
    return Finding(
        verdict=request.verdict,
        reasons=() if request.verdict == "pass" else (Reason(code="logprobs_differ", detail="as told"),),
        summary=request.text,
        next="nothing more",
        figures=figures,
        grade="attested",
        check="probe",
        artifacts=(artifact,),
    )


TOOL = Tool(
    name="run_probe",
    title="Probe",
    description="Takes as long and finds what it is told.",
    request=ProbeRequest,
    run=run,
    plan=plan,
)
