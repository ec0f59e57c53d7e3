"""slice_model: cut a small model that still holds every operator, and prove it."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field, field_validator

from bitgate.store.records import Finding
from bitgate.tools.config.project import SLICE_NAME, Project
from bitgate.tools.errors import RequestError, unknown_name
from bitgate.tools.registry import Tool, ToolRequest
from bitgate.tools.runs.context import RunContext
from bitgate.tools.slice.plan import DEFAULT_LIMIT
from bitgate.tools.slice.proof import PROOFS, Proof

DESCRIPTION: Final = """\
Cut a small model out of a checkpoint without loading it: the shortest window of layers that holds every layer class \
and every adjacent pair, with what it depends on (shared KV or indices, MTP). Streams tensor bytes, renumbers, \
rewrites every per-layer and quantisation key. Proves it: digest of each tensor equals its source's, load reports in \
transformers and vLLM, bitwise equality of each layer with the full model on a CPU. plan_only=true only takes the \
census (gate C0). Verdict pass, fail, invalid or inconclusive. Next: run_compare on the slice."""


class SliceRequest(ToolRequest):
    model: str | None = Field(default=None, description="Model to cut; default: the only one configured")
    name: Annotated[str, Field(pattern=f"^{SLICE_NAME}$")] | None = Field(
        default=None, description="Name of the slice; default: the model's with -slice"
    )
    layers: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=512)] | None = Field(
        default=None, description="Layers to keep; default: the shortest window that covers everything"
    )
    max_layers: Annotated[int, Field(ge=1, le=512)] = Field(
        default=DEFAULT_LIMIT, description="How many layers the slice may have"
    )
    plan_only: bool = Field(default=False, description="Only the census and the plan; writes nothing")
    keep_mtp: bool = Field(default=True, description="Keep multi-token prediction blocks")
    side: str | None = Field(
        default=None, description="Side whose interpreter proves the slice; default: rollout, trainer, or any with one"
    )
    proofs: list[Proof] = Field(
        default=list(PROOFS), description="transformers and vllm: load reports; window: equivalence on the CPU"
    )
    memory_gb: Annotated[float, Field(gt=0, le=100_000)] | None = Field(
        default=None, description="Memory that the proofs may use; default: 60 % of what is available"
    )

    @field_validator("layers", "proofs", mode="before")
    @classmethod
    def words(cls, value: Any) -> Any:
        """A command line has no lists: `layers=0,3,9`, or one number or word alone."""
        if isinstance(value, str):
            return [word.strip() for word in value.split(",")]
        return [value] if type(value) is int else value


def plan(project: Project, request: SliceRequest) -> None:
    """Refuse what cannot run, before any row is written.

    Raises:
        RequestError: names the field, what came, and what is allowed.
    """
    from bitgate.tools.slice.run import output_folder, proving_side

    model = project.model(request.model)
    if not model.path.is_dir():
        raise RequestError("model", model.name, "a model whose path is a folder", f"{model.path} is not one.")
    if request.plan_only:
        return
    output_folder(project, request)
    if request.side is not None and request.side not in project.config.side:
        raise unknown_name("side", request.side, project.config.side, "Sides are defined as [side.NAME].")
    if request.side is not None and proving_side(project, request) is None:
        raise RequestError("side", request.side, "a side with `python`", "Name the interpreter of the side.")


async def run(context: RunContext, request: SliceRequest) -> Finding:
    from bitgate.tools.slice.run import run_slice

    return await run_slice(context, request)


TOOL: Final = Tool(
    name="slice_model",
    title="Cut a small model and prove it",
    description=DESCRIPTION,
    request=SliceRequest,
    run=run,
    plan=plan,
)
