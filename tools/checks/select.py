"""Chooses the plan of a check for the engine at hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bitgate.tools.checks.batch import SWITCH_POINTS, plan_batch
from bitgate.tools.checks.company import forced, long_prompts
from bitgate.tools.checks.layout import plan_layout
from bitgate.tools.checks.phase import plan_phase
from bitgate.tools.checks.plan import CheckPlan
from bitgate.tools.checks.repeat import plan_repeat
from bitgate.tools.config.sides import Model, Side
from bitgate.tools.config.workloads import TokenSequence, Workload
from bitgate.tools.engines.base import Adapter
from bitgate.tools.errors import VerdictError

if TYPE_CHECKING:
    from bitgate.tools.run_compare import CompareRequest


def plan_check(request: CompareRequest, adapter: Adapter, side: Side, model: Model, workload: Workload) -> CheckPlan:
    """Raises VerdictError (`engine_unsupported`) when the engine has no such phase at all."""
    sequences: Sequence[TokenSequence] = workload.sequences()
    axes = axes_of(side, adapter)
    if not adapter.decodes or request.check == "layout":
        sequences = forced(sequences, workload.max_tokens, request.seed)
    match request.check:
        case "repeat":
            return plan_repeat(sequences, workload.max_tokens, workload.sampling, decodes=adapter.decodes)
        case "batch":
            sizes = tuple(request.batch_sizes or SWITCH_POINTS)
            return plan_batch(
                sequences,
                workload.max_tokens,
                workload.sampling,
                sizes,
                request.seed,
                decodes=adapter.decodes,
                room=adapter.room(side, model),
            )
        case "phase":
            if not adapter.decodes:
                raise VerdictError("engine_unsupported", f"side {side.name}: engine {side.engine} has no decode phase")
            # Long prompts join, so that chunk and cache-block edges are crossed whatever the workload's prompts are.
            lengths = adapter.long_lengths(side, model, workload.max_tokens)
            sequences = [*sequences, *long_prompts(sequences, lengths, request.seed)]
            return plan_phase(
                sequences,
                workload.max_tokens,
                workload.sampling,
                axes=axes,
                variants=adapter.variants(side, sequences, workload.max_tokens),
                not_applicable=adapter.not_applicable(side),
            )
        case "layout":
            return plan_layout(
                sequences,
                trains=adapter.trains,
                packings=adapter.layouts(side),
                axes=axes,
                variants=adapter.variants(side, sequences, workload.max_tokens),
                not_applicable=adapter.not_applicable(side),
            )
        case _:
            raise ValueError(f"no plan inside one side for {request.check}")


def axes_of(side: Side, adapter: Adapter) -> tuple[str, ...]:
    """The axes in force: those the side declares, else those its options imply."""
    return side.axes if side.axes is not None else adapter.default_axes(side)
