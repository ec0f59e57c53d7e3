"""Check `phase`: the same tokens through decode, one prefill, chunks, a cached prefix, eviction and graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from bitgate.tools.checks.plan import CheckPlan, PlannedJob, Proof, StepRef, View, together
from bitgate.tools.config.workloads import TokenSequence
from bitgate.tools.engines.jobs import Canary, Decode, Generate, Prefill, Sampling, Step

DEPLOYED = "deployed"
REFERENCE = StepRef(DEPLOYED, "decode")

PHASE_AXES = ("decode", "chunked_prefill", "prefix_cache", "preemption", "graphs")
_PROOFS = {
    "chunked_prefill": Proof("prefill_chunks", 2, "no prompt was prefilled in more than one chunk"),
    "prefix_cache": Proof("cached_tokens", 1, "no token was read from the prefix cache"),
    "preemption": Proof("preemptions", 1, "no sequence was preempted"),
    # Here the deployment replays graphs, and the variant is the eager engine it is compared with.
    "graphs": Proof("graph_replays", 1, "the deployed decode replayed no graph", REFERENCE),
}


def plan_phase(
    sequences: Sequence[TokenSequence],
    max_tokens: int,
    sampling: Sampling,
    *,
    axes: Sequence[str],
    variants: Mapping[str, Mapping[str, JsonValue]],
    not_applicable: Mapping[str, str],
) -> CheckPlan:
    """`variants`: engine options that bring an axis about, for the axes that need an engine of their own.

    The reference is free decode on the deployment's own options.
    """
    order = list(range(len(sequences)))
    wanted = [axis for axis in axes if axis in PHASE_AXES]
    reachable = [axis for axis in wanted if axis not in not_applicable]
    steps: list[Step] = [
        Generate(name="decode", groups=together(order), max_tokens=max_tokens, sampling=sampling),
        Prefill(name="prefill", groups=together(order)),
        Decode(name="resumed", groups=together(order), prefilled=max_tokens // 2, reset_cache=True),
        Canary(groups=together(order[:4])),
    ]
    views = [
        View("one prefill against decode", REFERENCE, StepRef(DEPLOYED, "prefill"), ("decode",)),
        View(
            "second half decoded after prefilling the first",
            REFERENCE,
            StepRef(DEPLOYED, "resumed"),
            ("decode",),
            partial=True,
        ),
    ]
    jobs = [PlannedJob(DEPLOYED, tuple(steps))]
    for axis in reachable:
        if axis in variants:
            job, added = _variant(axis, variants[axis], order, max_tokens)
            jobs.append(job)
            views.extend(added)
    unreachable = {
        axis: "this engine and workload have no way to bring it about on demand"
        for axis in reachable
        if axis in _PROOFS and axis not in variants
    }
    absent = {axis: why for axis, why in not_applicable.items() if axis in wanted}
    return CheckPlan(tuple(sequences), tuple(jobs), tuple(views), tuple(wanted), absent, unreachable)


def _variant(
    axis: str, options: Mapping[str, JsonValue], order: list[int], max_tokens: int
) -> tuple[PlannedJob, list[View]]:
    steps: tuple[Step, ...] = (Decode(name="decode", groups=together(order), reset_cache=True),)
    labels = {"decode": f"{'eager' if axis == 'graphs' else axis} decode against deployed decode"}
    proven_by = "decode"
    if axis == "prefix_cache":
        # The first pass fills the cache, the second one, with part of the response as prompt, reads it.
        steps = (*steps, Decode(name="cached", groups=together(order), prefilled=max_tokens // 2))
        labels |= {
            "decode": "prefix cache miss against deployed decode",
            "cached": "prefix cache hit against deployed decode",
        }
        proven_by = "cached"
    if axis == "chunked_prefill":
        steps = (*steps, Prefill(name="prefill", groups=together(order)))
        labels |= {"prefill": "chunked prefill against deployed decode"}
    views = [
        View(
            label,
            REFERENCE,
            StepRef(axis, name),
            (axis,),
            _PROOFS.get(axis) if name == proven_by else None,
            partial=name == "cached",
        )
        for name, label in labels.items()
    ]
    return PlannedJob(axis, steps, options, axis), views
