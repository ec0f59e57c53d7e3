"""ab_benchmark: is a side as fast as another, beyond argument?"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field, JsonValue

from bitgate.store.records import Finding
from bitgate.tools.config.project import Project
from bitgate.tools.errors import RequestError, unknown_name
from bitgate.tools.registry import Tool, ToolRequest
from bitgate.tools.runs.context import RunContext

BASELINE: Final = "baseline"

DESCRIPTION: Final = """\
Measure speed in pairs: both engines started once and resident, one at work at a time, random ABBA or BAAB blocks, \
equal prompts, forced equal lengths, an A/A null run first; tokens/s, TTFT, ITL, and the ratio with an interval that \
keeps its coverage. Without `other`: the side against side baseline and the policy's floor, decided by the lower end. \
With `other`: two candidates, is side faster? side == other: the noise floor. breakdown=true: time by operator class, \
the costliest difference first. Vetoes: drifted, slowed or contaminated baseline, other transport, image or kernels, \
unequal tokens, throttling, busy device, no bit-pass."""


class AbRequest(ToolRequest):
    side: str = Field(default="rollout", description="The side whose speed is in question")
    other: str | None = Field(
        default=None, description="What it is measured against; default: side baseline. The same name: A/A run"
    )
    model: str | None = Field(default=None, description="Model name; default: the side's, or the only one configured")
    workload: str | None = Field(default=None, description="Workload name; default: the only one configured")
    options: dict[str, dict[str, JsonValue]] = Field(
        default={},
        description="Engine options to try for this run, by side; recorded, and count for no gate until configured",
    )
    blocks: Annotated[int, Field(ge=1, le=100)] = Field(
        default=6, description="Blocks of two pairs; below 6 the interval is Student's t, below 3 there is no verdict"
    )
    null_blocks: Annotated[int, Field(ge=2, le=100)] | None = Field(
        default=None, description="Blocks of the A/A null run before; default: as many as `blocks`, at least 3"
    )
    warm_up: Annotated[int, Field(ge=1, le=20)] = Field(
        default=2, description="Turns of each side before anything counts"
    )
    concurrency: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        default=None, description="Requests at once; default: all of the workload"
    )
    turn_s: Annotated[float, Field(ge=0, le=600)] = Field(
        default=1.0, description="The workload is served so often in a turn that the faster side takes about this long"
    )
    breakdown: bool = Field(
        default=False, description="Time by operator class instead of a ratio; `other` adds a second side"
    )
    seed: int = Field(default=0, ge=0, description="Of the order of turns")


def plan(project: Project, request: AbRequest) -> None:
    """Refuse what cannot run, before any row is written.

    Raises:
        RequestError: names the field, what came, and what is allowed.
    """
    from bitgate.tools.engines.adapters import adapter_of

    names = names_of(request)
    for named in request.options:
        if named not in names:
            raise unknown_name("options", named, names, "Options are given by the name of a side that this run starts.")
    for field, name in zip(("side", "other"), names, strict=False):
        side = project.side(name, request.options.get(name), field=field)
        adapter = adapter_of(side.engine)
        if not adapter.decodes:
            raise RequestError(
                field, name, "a side whose engine generates (vllm, server)", f"Engine {side.engine} serves no load."
            )
        if request.breakdown and side.engine == "server":
            raise RequestError(
                "breakdown", True, "sides whose engine bitgate starts", "A server cannot be profiled from outside."
            )
        adapter.check_options(side)
        if side.engine != "server":
            project.model(request.model or side.model)
    project.workload(request.workload)


def names_of(request: AbRequest) -> list[str]:
    """The sides that run, the one in question first; both may be the same."""
    if request.breakdown and request.other is None:
        return [request.side]
    return [request.side, request.other or BASELINE]


async def run(context: RunContext, request: AbRequest) -> Finding:
    from bitgate.tools.ab.run import run_benchmark

    return await run_benchmark(context, request)


TOOL: Final = Tool(
    name="ab_benchmark",
    title="Measure speed against a baseline",
    description=DESCRIPTION,
    request=AbRequest,
    run=run,
    plan=plan,
)
