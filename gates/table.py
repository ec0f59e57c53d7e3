"""C0-C10, in one place: criterion, evidence, prerequisites, signature (DESIGN section 9)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from bitgate.gates.spec import Gate, Need, SideRole


def _provenance(side: SideRole) -> Need:
    return Need(
        key=f"provenance_{side}",
        what=f"what the {side} side really runs was observed and is as declared",
        tool="check_provenance",
        call=f'check_provenance(side="{{{side}}}")',
        sides=(side,),
        grade="observed",
        on_fail="newest",
        fresh="age",
    )


REPEAT: Final = Need(
    key="repeat",
    what="the same request gives the same bits again, also in another order",
    tool="run_compare",
    check="repeat",
    call='run_compare(check="repeat", side="{rollout}", model="{slice}")',
    sides=("rollout",),
    model="slice",
)
BATCH: Final = Need(
    key="batch",
    what="a sequence alone gives the same bits as in company, over the batch-size sweep",
    tool="run_compare",
    check="batch",
    call='run_compare(check="batch", side="{rollout}", model="{slice}")',
    sides=("rollout",),
    model="slice",
)
PHASE: Final = Need(
    key="phase",
    what="decode gives the same bits as prefill over every axis the rollout side declares",
    tool="run_compare",
    check="phase",
    call='run_compare(check="phase", side="{rollout}", model="{slice}")',
    sides=("rollout",),
    model="slice",
    all_axes=True,
)
THREE_LEGS: Final = Need(
    key="rollout_vs_trainer",
    what="rollout, trainer recompute and first train forward agree to the last bit",
    tool="run_compare",
    check="rollout_vs_trainer",
    call='run_compare(check="rollout_vs_trainer", side="{rollout}", trainer="{trainer}", model="{slice}")',
    sides=("rollout", "trainer"),
    model="slice",
    grade="observed",
    conditions=("three_legs",),
)
UPDATES: Final = Need(
    key="two_updates",
    what="two consecutive updates in the real trainer: equal before and after each, the weight chain whole, digests "
    "really changed",
    tool="check_updates",
    call='check_updates(rollout="{rollout}", trainer="{trainer}", model="{slice}")',
    sides=("rollout", "trainer"),
    model="slice",
    grade="observed",
)


def _on_full(need: Need) -> Need:
    return replace(
        need, key=f"{need.key}_full", what=f"{need.what}, on the full model", model="full", grade="observed",
        call=need.call.replace("{slice}", "{full}"),
    )  # fmt: skip


GATES: Final[tuple[Gate, ...]] = (
    Gate(
        id="C0",
        title="Scope",
        criterion="Every module of the model has an operator class, a precision, a parallel role and a route on both "
        "sides. The policy is declared: one update a step (or a waiver), the importance-sampling corrections in use, "
        "and no reduction across ranks on the compared path, or a fixed one.",
        needs=(
            Need(
                key="census",
                what="every module of the model has an operator class, a precision and a parallel role",
                tool="slice_model",
                check="census",
                call='slice_model(model="{full}", plan_only=true)',
                model="full",
            ),
        ),
        policy=("updates_per_step", "corrections", "cross_rank_reduction"),
        conditions=("policy_declared", "one_update_a_step", "routes"),
    ),
    Gate(
        id="C1",
        title="Baseline",
        criterion="The baseline is tuned: the knobs tried are on record with their A/B results, and the winner has a "
        "time breakdown. Its provenance passes, nothing batch-invariant is active in it, an A/A run gives its noise "
        "floor, and a person froze it.",
        needs=(
            _provenance("baseline"),
            Need(
                key="noise_floor",
                what="an A/A run of the baseline gives its noise floor",
                tool="ab_benchmark",
                check="aa",
                call='ab_benchmark(side="{baseline}", other="{baseline}")',
                sides=("baseline",),
                grade="observed",
                on_fail="newest",
            ),
            Need(
                key="breakdown",
                what="the winner's time per operator class is on record",
                tool="ab_benchmark",
                check="breakdown",
                call='ab_benchmark(side="{baseline}", breakdown=true)',
                sides=("baseline",),
                grade="observed",
                accepts=("pass", "fail", "inconclusive"),
                on_fail="newest",
            ),
        ),
        prerequisites=("C0",),
        signature="closes",
        signed_by="this is the tuned baseline that speed is measured against; it is frozen",
        conditions=("baseline_proposed", "tuning_record", "baseline_undrifted"),
        binds_baseline=True,
    ),
    Gate(
        id="C2",
        title="Small model",
        criterion="A slice of the model holds every operator class and every adjacent pair of classes, and is proved "
        "equal to its source.",
        needs=(
            Need(
                key="slice",
                what="the slice is cut, its tensors are the source's bytes, and it loads with no missing or "
                "unexpected key",
                tool="slice_model",
                check="cut",
                call='slice_model(model="{full}")',
                model="slice",
                grade="observed",
            ),
        ),
        prerequisites=("C0",),
    ),
    Gate(
        id="C3",
        title="Batch",
        criterion="On the slice, the rollout side gives the same bits when a request is repeated, and alone as in "
        "any batch.",
        needs=(_provenance("rollout"), REPEAT, BATCH),
        prerequisites=("C2",),
    ),
    Gate(
        id="C4",
        title="Phase",
        criterion="Decode, chunked prefill, prefix cache and every other axis the rollout side declares give the bits "
        "of one whole prefill. What being consistent costs per operator is on record.",
        needs=(
            _provenance("rollout"),
            PHASE,
            Need(
                key="cost",
                what="the time per operator class of the consistent rollout is on record",
                tool="ab_benchmark",
                check="breakdown",
                call='ab_benchmark(side="{rollout}", breakdown=true)',
                sides=("rollout",),
                accepts=("pass", "fail", "inconclusive"),
                on_fail="newest",
            ),
        ),
        prerequisites=("C3",),
    ),
    Gate(
        id="C5",
        title="Trainer",
        criterion="For every token under the response mask, the rollout's logprob, the trainer's recompute and the "
        "first train forward are the same fp32 bits, with bitgate running both engines.",
        needs=(_provenance("rollout"), _provenance("trainer"), THREE_LEGS),
        prerequisites=("C4",),
    ),
    Gate(
        id="C6",
        title="Layers",
        criterion="Every mandatory point of every layer was observed and is equal, the trainer does not depend on "
        "packing, micro-batch or order, and every earlier divergence has a repro on record.",
        needs=(
            _provenance("rollout"),
            _provenance("trainer"),
            Need(
                key="layers",
                what="no layer differs: every mandatory point observed and equal",
                tool="bisect_layer",
                check="rollout_vs_trainer",
                call='bisect_layer(check="rollout_vs_trainer", side="{rollout}", trainer="{trainer}", model="{slice}")',
                sides=("rollout", "trainer"),
                model="slice",
                grade="observed",
            ),
            Need(
                key="layout",
                what="packed and padded, every micro-batch size and every order give the same bits",
                tool="run_compare",
                check="layout",
                call='run_compare(check="layout", side="{trainer}", model="{slice}")',
                sides=("trainer",),
                model="slice",
                grade="observed",
            ),
        ),
        prerequisites=("C5",),
        conditions=("divergences_have_repros",),
    ),
    Gate(
        id="C7",
        title="Backward",
        criterion="Module VJPs and a short training run agree with an independently written reference; gradients are "
        "finite and non-zero; the weights do not change between forward and backward.",
        needs=(
            _provenance("trainer"),
            Need(
                key="gradient",
                what="gradients agree with an independent reference",
                tool="check_gradient",
                call='check_gradient(side="{trainer}", model="{slice}")',
                sides=("trainer",),
                model="slice",
                grade="observed",
            ),
        ),
        prerequisites=("C6",),
    ),
    Gate(
        id="C8",
        title="Two updates",
        criterion="Two consecutive updates in the real trainer: comparison passes before and after each, master, "
        "train-forward, exported and engine-resident weights are one chain, digests really changed, and groups are "
        "diverse.",
        needs=(_provenance("rollout"), _provenance("trainer"), UPDATES),
        prerequisites=("C7",),
    ),
    Gate(
        id="C9",
        title="Full model",
        criterion="A person opened it. C3, C4, C5 and C8 hold on the full model, and so does the first step after a "
        "checkpoint is resumed.",
        needs=(
            _provenance("rollout"),
            _provenance("trainer"),
            *(_on_full(need) for need in (REPEAT, BATCH, PHASE, THREE_LEGS, UPDATES)),
            Need(
                key="resume",
                what="the first step after a checkpoint is resumed agrees to the last bit",
                tool="check_resume",
                call='check_resume(trainer="{trainer}", model="{full}")',
                sides=("rollout", "trainer"),
                model="full",
                grade="observed",
            ),
        ),
        prerequisites=("C8",),
        signature="opens",
        signed_by="the small model is proved; the full model's machines may be used",
    ),
    Gate(
        id="C10",
        title="Speed",
        criterion="The lower end of the interval is at least the policy's floor of the frozen baseline, in the "
        "delivery image, with equal transport and workload and a bit-pass under the same rollout side and model, and "
        "a person signed it.",
        needs=(
            _provenance("rollout"),
            _provenance("trainer"),
            _provenance("baseline"),
            Need(
                key="speed",
                what="the rollout side keeps the floor of the frozen baseline's speed by the lower end of the interval",
                tool="ab_benchmark",
                check="floor",
                call='ab_benchmark(side="{rollout}", model="{full}")',
                sides=("rollout", "baseline"),
                model="full",
                grade="observed",
                on_fail="newest",
                conditions=("floor",),
            ),
            replace(_on_full(THREE_LEGS), key="bits"),
        ),
        prerequisites=("C1", "C9"),
        signature="closes",
        signed_by="the consistent stack is fast enough to train with",
        policy=("rollout_floor",),
        conditions=("baseline_frozen", "baseline_undrifted"),
        binds_baseline=True,
    ),
)

BY_ID: Final[dict[str, Gate]] = {gate.id: gate for gate in GATES}
GATE_IDS: Final[tuple[str, ...]] = tuple(BY_ID)
