"""bisect_layer: name the first operator that differs, say why, hand over a repro."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, JsonValue

from bitgate.store.records import Finding
from bitgate.tools.config.project import Project
from bitgate.tools.errors import RequestError, unknown_name
from bitgate.tools.registry import Tool, ToolRequest
from bitgate.tools.runs.context import RunContext

Check = Literal["rollout_vs_trainer", "batch", "phase"]

DESCRIPTION: Final = """\
Find the first operator that differs between two computations of the same tokens, why, and a script that shows it. \
`check` says which two: rollout_vs_trainer (two sides), batch (each sequence alone against all together), phase \
(prefill against decode and against chunks). Hashes every semantic point of every layer on the real engines, takes the \
first operator whose inputs are equal and whose output is not, records only that operator, and finds its class by \
experiments; 'cause unknown' is a possible answer. Verdict pass means: every mandatory point observed and equal."""


class BisectRequest(ToolRequest):
    check: Check = Field(description="Which two computations")
    side: str = Field(default="rollout", description="The side under test; in rollout_vs_trainer the rollout")
    trainer: str = Field(default="trainer", description="rollout_vs_trainer: the trainer's side")
    model: str | None = Field(default=None, description="Model name; default: the side's, or the only one configured")
    workload: str | None = Field(default=None, description="Workload name; default: the only one configured")
    options: dict[str, dict[str, JsonValue]] = Field(
        default={},
        description="Engine options to try for this run, by side; recorded, and count for no gate until configured",
    )
    sequences: Annotated[int, Field(ge=1, le=256)] = Field(
        default=16, description="How many of the workload's sequences are watched, from the first on"
    )
    seed: int = Field(default=0, description="Of the responses that are forced in batch and phase")


def plan(project: Project, request: BisectRequest) -> None:
    """Refuse what cannot run, before any row is written.

    Raises:
        RequestError: names the field, what came, and what is allowed.
    """
    from bitgate.tools.engines.adapters import adapter_of

    names = [request.side, request.trainer] if request.check == "rollout_vs_trainer" else [request.side]
    for named in request.options:
        if named not in names:
            raise unknown_name("options", named, names, "Options are given by the name of a side that this check runs.")
    for name, field in zip(names, ("side", "trainer"), strict=False):
        side = project.side(name, request.options.get(name), field=field)
        if side.engine == "capture":
            raise RequestError(field, name, "a side with an engine", "From files alone no operator can be run again.")
        adapter_of(side.engine).check_options(side)
        project.model(request.model or side.model)
    if request.check == "rollout_vs_trainer" and request.side == request.trainer:
        raise RequestError("trainer", request.trainer, "another side than `side`", "Use check=batch within one side.")
    project.workload(request.workload)


async def run(context: RunContext, request: BisectRequest) -> Finding:
    # numpy, safetensors and matplotlib are loaded only where a localisation really runs.
    from bitgate.tools.bisect.run import run_bisect

    return await run_bisect(context, request)


TOOL: Final = Tool(
    name="bisect_layer",
    title="Name the first operator that differs",
    description=DESCRIPTION,
    request=BisectRequest,
    run=run,
    plan=plan,
)
