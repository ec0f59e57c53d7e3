"""Check `repeat`: the same request again in the same batch, and again in another order."""

from __future__ import annotations

from collections.abc import Sequence

from bitgate.tools.checks.plan import CheckPlan, PlannedJob, StepRef, View, together
from bitgate.tools.config.workloads import TokenSequence
from bitgate.tools.engines.jobs import Canary, Decode, Generate, Prefill, Sampling, Step

JOB = "repeat"


def plan_repeat(sequences: Sequence[TokenSequence], max_tokens: int, sampling: Sampling, *, decodes: bool) -> CheckPlan:
    """`decodes`: the engine has a decode phase; otherwise the sequences come with responses and are scored."""
    order = list(range(len(sequences)))
    steps: list[Step]
    if decodes:
        steps = [
            Generate(name="first", groups=together(order), max_tokens=max_tokens, sampling=sampling),
            Decode(name="again", groups=together(order), reset_cache=True),
            Decode(name="reversed", groups=together(order[::-1]), reset_cache=True),
            Decode(name="last", groups=together(order), reset_cache=True),
        ]
    else:
        steps = [
            Prefill(name="first", groups=together(order)),
            Prefill(name="again", groups=together(order)),
            Prefill(name="reversed", groups=together(order[::-1])),
            Prefill(name="last", groups=together(order)),
        ]
    first = StepRef(JOB, "first")
    labels = {"again": "same batch again", "reversed": "same batch in reversed order", "last": "same batch once more"}
    return CheckPlan(
        sequences=tuple(sequences),
        jobs=(PlannedJob(JOB, (*steps, Canary(groups=together(order)))),),
        views=tuple(View(label, first, StepRef(JOB, name)) for name, label in labels.items()),
    )
