"""Check `batch`: every sequence alone against the same sequence in company, and among others with its long prefix."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from bitgate.tools.checks.company import company, family
from bitgate.tools.checks.plan import CheckPlan, PlannedJob, StepRef, View, alone, together
from bitgate.tools.config.workloads import TokenSequence
from bitgate.tools.engines.jobs import Canary, Decode, Generate, Groups, Prefill, Sampling, Step

JOB = "batch"
SWITCH_POINTS = (1, 2, 8, 15, 16, 17, 31, 32, 33, 43, 44, 45, 64, 128)
"""Batch sizes on both sides of row counts at which kernels are known to change."""


@dataclass(frozen=True)
class Crowd:
    """Groups of exactly `size` sequences that hold each of the first `count` once, topped up with company."""

    groups: Groups
    company: list[int]


def crowd(count: int, size: int, seed: int) -> Crowd:
    order = list(range(count))
    random.Random(f"{seed} {size}").shuffle(order)
    groups = [order[i : i + size] for i in range(0, count, size)]
    missing = size - len(groups[-1])
    extra = list(range(count, count + missing))
    # Company on both sides: the first and the last place of a batch are where tiles begin and end.
    groups[-1] = [*extra[::2], *groups[-1], *extra[1::2]]
    return Crowd(groups, extra)


def plan_batch(
    sequences: Sequence[TokenSequence],
    max_tokens: int,
    sampling: Sampling,
    sizes: Sequence[int],
    seed: int,
    *,
    decodes: bool,
    room: int = 0,
) -> CheckPlan:
    """`decodes`: the engine has a decode phase, swept beside the prefill; otherwise sequences come with responses.

    `room`: the longest sequence that the side takes; 0: not known.
    """
    count = len(sequences)
    crowds = {size: crowd(count, size, seed) for size in sizes}
    extra = company(sequences, max(len(c.company) for c in crowds.values()), max_tokens, seed)
    steps: list[Step] = []
    views: list[View] = []
    if decodes:
        steps.append(Generate(name="decode_alone", groups=alone(count), max_tokens=max_tokens, sampling=sampling))
        for size, c in crowds.items():
            steps.append(Decode(name=f"decode_{size}", groups=c.groups, company=c.company, reset_cache=True))
            views.append(_view("decode", size))
    steps.append(Prefill(name="prefill_alone", groups=alone(count)))
    for size, c in crowds.items():
        steps.append(Prefill(name=f"prefill_{size}", groups=c.groups, company=c.company))
        views.append(_view("prefill", size))
    relatives = family(sequences, room, max_tokens, seed)
    first = count + len(extra)
    for phase in ("decode", "prefill") if decodes else ("prefill",):
        steps.extend(_family_steps(phase, range(first, first + len(relatives))))
        views.append(_family_view(phase))
    steps.append(Canary(groups=together(range(min(count, 4)))))
    return CheckPlan((*sequences, *extra, *relatives), (PlannedJob(JOB, tuple(steps)),), tuple(views))


def _family_steps(phase: str, members: range) -> tuple[Step, Step]:
    apart, joint = [[i] for i in members], together(members)
    if phase == "prefill":
        return Prefill(name="prefill_family_alone", groups=apart), Prefill(name="prefill_family", groups=joint)
    # The second step finds the prefix in the cache that the first one filled: only then do requests share its blocks.
    return (
        Decode(name="decode_family_alone", groups=apart, reset_cache=True),
        Decode(name="decode_family", groups=joint),
    )


def _family_view(phase: str) -> View:
    label = f"{phase}, all with one long prefix against alone"
    return View(label, StepRef(JOB, f"{phase}_family_alone"), StepRef(JOB, f"{phase}_family"))


def _view(phase: str, size: int) -> View:
    label = f"{phase}, batch of {size} against alone"
    return View(label, StepRef(JOB, f"{phase}_alone"), StepRef(JOB, f"{phase}_{size}"))
