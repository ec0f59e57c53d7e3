"""Check `layout`: one sequence a forward against padded, packed, micro-batched, reordered and sharded ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from bitgate.tools.checks.plan import CheckPlan, PlannedJob, StepRef, View, alone, together
from bitgate.tools.config.workloads import TokenSequence
from bitgate.tools.engines.jobs import Canary, Groups, Packing, Prefill, Step, TrainForward

JOB = "layout"
MICRO_BATCHES = (2, 3, 4)
LAYOUT_AXES = ("packing", "micro_batch", "tensor_parallel", "expert_parallel", "context_parallel", "pipeline_parallel")


def plan_layout(
    sequences: Sequence[TokenSequence],
    *,
    trains: bool,
    packings: Sequence[Packing],
    axes: Sequence[str],
    variants: Mapping[str, Mapping[str, JsonValue]],
    not_applicable: Mapping[str, str],
) -> CheckPlan:
    """`packings`: the layouts this engine has; `variants`: engine options that reach a parallel axis."""
    order = list(range(len(sequences)))
    steps: list[Step] = [Prefill(name="single", groups=alone(len(order)), packing=packings[0])]
    views: list[View] = []
    for name, groups, packing, axis in _arrangements(order, packings):
        steps.append(Prefill(name=name, groups=groups, packing=packing))
        views.append(_view(name, axis))
        if trains:
            steps.append(TrainForward(name=f"train_{name}", groups=groups, packing=packing))
            views.append(_view(f"train_{name}", axis))
    steps.append(Canary(groups=together(order[:4])))
    jobs = [PlannedJob(JOB, tuple(steps))]
    wanted = [axis for axis in axes if axis in LAYOUT_AXES]
    for axis in wanted:
        if axis in variants and axis not in not_applicable:
            jobs.append(PlannedJob(axis, (Prefill(name="single", groups=alone(len(order))),), variants[axis], axis))
            views.append(View(f"{axis} against this layout", StepRef(JOB, "single"), StepRef(axis, "single"), (axis,)))
    reached = {axis for view in views for axis in view.axes}
    unreachable = {
        axis: "this engine has no way to bring it about on demand"
        for axis in wanted
        if axis not in reached and axis not in not_applicable
    }
    absent = {axis: why for axis, why in not_applicable.items() if axis in wanted}
    return CheckPlan(tuple(sequences), tuple(jobs), tuple(views), tuple(wanted), absent, unreachable)


def _arrangements(order: list[int], packings: Sequence[Packing]) -> list[tuple[str, Groups, Packing, str]]:
    found: list[tuple[str, Groups, Packing, str]] = []
    for packing in packings:
        axis = "packing" if packing == "packed" else "micro_batch"
        if packing == "single":
            found.append(("single_reversed", [[i] for i in reversed(order)], packing, "micro_batch"))
            continue
        for size in dict.fromkeys(min(size, len(order)) for size in (*MICRO_BATCHES, len(order))):
            groups = [order[i : i + size] for i in range(0, len(order), size)]
            found.append((f"{packing}_{size}", groups, packing, axis))
        found.append((f"{packing}_reversed", together(order[::-1]), packing, axis))
    return found


def _view(name: str, axis: str) -> View:
    return View(f"{name.replace('_', ' ')} against single", StepRef(JOB, "single"), StepRef(JOB, name), (axis,))
