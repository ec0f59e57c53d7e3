"""check_provenance: what really runs, observed in every worker, against what was declared."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from bitgate.store.records import Finding
from bitgate.tools.config.project import Project
from bitgate.tools.errors import RequestError
from bitgate.tools.registry import Tool, ToolRequest
from bitgate.tools.runs.context import RunContext

DESCRIPTION: Final = """\
Observe what really runs in every rank of a side, after its engine has loaded and run: imported files and their \
hashes against the wheel's RECORD and the source tree, replaced functions, stale bytecode, second copies, loaded \
libraries, the environment as the worker has it, kernels chosen, GPU, caches. Checked against [side.NAME] env, source \
and expect. other= also shows what two sides differ in. Different is fail, declared but not observed is inconclusive. \
Every gate from C1 on needs a pass of each side it uses."""


class ProvenanceRequest(ToolRequest):
    side: str = Field(default="rollout", description="The side to observe")
    other: str | None = Field(
        default=None, description="A second side to observe and to compare with, such as baseline"
    )
    model: str | None = Field(default=None, description="Model name; default: the side's, or the only one configured")
    workload: str | None = Field(
        default=None, description="Where the few prompts come from that the engine runs first; default: made up"
    )


def plan(project: Project, request: ProvenanceRequest) -> None:
    """Refuse what cannot run, before any row is written.

    Raises:
        RequestError: names the field, what came, and what is allowed.
    """
    from bitgate.tools.engines.adapters import adapter_of

    if request.other == request.side:
        raise RequestError("other", request.other, "a side other than `side`", "One side is observed without `other`.")
    for field, name in (("side", request.side), ("other", request.other)):
        if name is None:
            continue
        side = project.side(name, field=field)
        if side.engine in ("capture", "server"):
            raise RequestError(
                field,
                name,
                "a side whose engine bitgate starts",
                f"Nothing of engine {side.engine} can be looked into.",
            )
        adapter_of(side.engine).check_options(side)
        project.model(request.model or side.model)
    if request.workload is not None:
        project.workload(request.workload)


async def run(context: RunContext, request: ProvenanceRequest) -> Finding:
    from bitgate.tools.provenance.run import run_provenance

    return await run_provenance(context, request)


TOOL: Final = Tool(
    name="check_provenance",
    title="Observe what really runs",
    description=DESCRIPTION,
    request=ProvenanceRequest,
    run=run,
    plan=plan,
)
