"""run_compare: are two computations of the same tokens' logprobs equal to the last bit?"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, JsonValue

from bitgate.store.records import Finding
from bitgate.tools.config.project import Project
from bitgate.tools.errors import RequestError, unknown_name
from bitgate.tools.registry import Tool, ToolRequest
from bitgate.tools.runs.context import RunContext

Check = Literal["rollout_vs_trainer", "repeat", "batch", "phase", "layout"]
LEGS: Final = ("rollout", "recompute", "first_train_forward")
REFERENCE: Final = "reference"

DESCRIPTION: Final = """\
Compare logprobs bit by bit. `check` says what is held equal: rollout_vs_trainer (rollout == trainer recompute == \
first train forward), repeat (same request again), batch (alone against in company), phase (decode, prefill, chunks, \
prefix cache, preemption, graphs), layout (packed, padded, micro-batches, order, sharding). Runs the sides' real \
engines, or reads captures. Verdict pass, fail, invalid or inconclusive; any different bit is a fail."""


class CompareRequest(ToolRequest):
    check: Check = Field(description="What is held equal")
    side: str = Field(default="rollout", description="The side under test; in rollout_vs_trainer the rollout")
    trainer: str = Field(default="trainer", description="rollout_vs_trainer: the trainer's side")
    model: str | None = Field(default=None, description="Model name; default: the side's, or the only one configured")
    workload: str | None = Field(default=None, description="Workload name; default: the only one configured")
    options: dict[str, dict[str, JsonValue]] = Field(
        default={},
        description="Engine options to try for this run, by side; recorded, and count for no gate until configured",
    )
    captures: dict[str, str] = Field(
        default={},
        description="Folders on disk instead of engines. rollout_vs_trainer: rollout, recompute, first_train_forward. "
        "Other checks: reference, and one or more under names of your own",
    )
    batch_sizes: Annotated[list[Annotated[int, Field(ge=1, le=4096)]], Field(max_length=64)] | None = Field(
        default=None, description="batch: sizes to sweep; default: those around known kernel switch points"
    )
    seed: int = Field(default=0, description="Of the company, orders and long prompts that the check adds")


def plan(project: Project, request: CompareRequest) -> None:
    """Refuse what cannot run, before any row is written.

    Raises:
        RequestError: names the field, what came, and what is allowed.
    """
    if request.batch_sizes is not None and request.check != "batch":
        raise RequestError("batch_sizes", request.batch_sizes, "only with check=batch")
    if request.captures:
        _plan_captures(project, request)
        return
    names = [request.side, request.trainer] if request.check == "rollout_vs_trainer" else [request.side]
    if len(set(names)) < len(names):
        raise RequestError("trainer", request.trainer, "a side other than `side`", "For one side use check=repeat.")
    for named in request.options:
        if named not in names:
            raise unknown_name("options", named, names, "Options are given by the name of a side that this check runs.")
    sides = [
        project.side(name, request.options.get(name), field=field)
        for name, field in zip(names, ("side", "trainer"), strict=False)
    ]
    from bitgate.tools.engines.adapters import adapter_of

    for side in sides:
        adapter_of(side.engine).check_options(side)
        project.model(request.model or side.model)
    if any(side.engine != "capture" for side in sides):
        project.workload(request.workload).check()
    if request.check != "rollout_vs_trainer" and sides[0].engine == "capture":
        raise RequestError(
            "side", request.side, "a side with an engine", f"check={request.check} on files takes `captures`."
        )


def _plan_captures(project: Project, request: CompareRequest) -> None:
    if request.options:
        raise RequestError(
            "options", request.options, "no options together with captures", "Nothing is run on captures."
        )
    if request.check == "rollout_vs_trainer":
        for name in request.captures:
            if name not in LEGS:
                raise unknown_name("captures", name, LEGS)
    elif REFERENCE not in request.captures or len(request.captures) < 2:
        raise RequestError(
            "captures",
            sorted(request.captures),
            "'reference' and at least one more",
            "The others are compared with it.",
        )
    for name, path in request.captures.items():
        if not project.confined(path, f"captures.{name}").is_dir():
            raise RequestError(
                f"captures.{name}", path, "a folder that holds capture.json, or a folder a rank", "There is none."
            )


async def run(context: RunContext, request: CompareRequest) -> Finding:
    # numpy, safetensors and matplotlib are loaded only where a comparison really runs.
    from bitgate.tools.checks.run import run_check

    return await run_check(context, request)


TOOL: Final = Tool(
    name="run_compare",
    title="Compare logprobs bit by bit",
    description=DESCRIPTION,
    request=CompareRequest,
    run=run,
    plan=plan,
)
