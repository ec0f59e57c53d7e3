from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitgate.tools.checks.batch import SWITCH_POINTS, crowd, plan_batch
from bitgate.tools.checks.company import company, family, forced, long_prompts
from bitgate.tools.checks.layout import plan_layout
from bitgate.tools.checks.phase import DEPLOYED, plan_phase
from bitgate.tools.checks.plan import CheckPlan, StepRef
from bitgate.tools.checks.repeat import plan_repeat
from bitgate.tools.config.workloads import TokenSequence
from bitgate.tools.engines.jobs import Decode, Generate, Prefill, Sampling

PROMPTS = tuple(TokenSequence(tuple(range(10 * i, 10 * i + 3 + i))) for i in range(5))
VARIANTS = {"chunked_prefill": {"max_num_batched_tokens": 17}, "prefix_cache": {"enable_prefix_caching": True}}


@given(count=st.integers(1, 40), size=st.integers(1, 140), seed=st.integers(0, 5))
def test_a_crowd_holds_every_sequence_once_in_groups_of_exactly_its_size(count: int, size: int, seed: int) -> None:
    made = crowd(count, size, seed)
    assert {len(group) for group in made.groups} == {size}
    ours = Counter(i for group in made.groups for i in group if i not in made.company)
    assert ours == Counter(range(count))
    assert all(i >= count for i in made.company)


def test_batch_sweeps_every_switch_point_in_both_phases_against_alone() -> None:
    plan = plan_batch(PROMPTS, 4, Sampling(), SWITCH_POINTS, 0, decodes=True)
    swept = [view for view in plan.views if "family" not in view.step.step]
    assert {view.step.step for view in swept} == {f"{p}_{n}" for p in ("decode", "prefill") for n in SWITCH_POINTS}
    assert {view.reference.step for view in swept} == {"decode_alone", "prefill_alone"}
    _names_only_sequences_that_exist(plan)


@pytest.mark.parametrize("decodes", [True, False])
def test_batch_asks_for_a_batch_that_shares_one_long_prefix_as_a_whole(decodes: bool) -> None:
    """Some kernels merge the attention of a shared prefix only when every request has it, and it is long."""
    plan = plan_batch(forced(PROMPTS, 4, 0), 4, Sampling(), (1, 8), 0, decodes=decodes, room=2048)
    steps = {step.name: step for job in plan.jobs for step in job.steps}
    phases = ("decode", "prefill") if decodes else ("prefill",)
    views = {view.step.step: view for view in plan.views}
    for phase in phases:
        assert views[f"{phase}_family"].reference.step == f"{phase}_family_alone"
        (joint,) = steps[f"{phase}_family"].groups
        assert steps[f"{phase}_family_alone"].groups == [[i] for i in joint]
        prompts = [plan.sequences[i].prompt for i in joint]
        assert len(joint) >= 8 and len({prompt[:256] for prompt in prompts}) == 1
        assert len(set(prompts)) == len(joint)
    _names_only_sequences_that_exist(plan)


def test_the_prefix_of_a_batch_is_cached_before_it_is_shared() -> None:
    steps = {step.name: step for step in plan_batch(PROMPTS, 4, Sampling(), (1,), 0, decodes=True).jobs[0].steps}
    alone, joint = steps["decode_family_alone"], steps["decode_family"]
    assert isinstance(alone, Decode) and isinstance(joint, Decode)
    assert (alone.reset_cache, joint.reset_cache) == (True, False)


@pytest.mark.parametrize("room", [0, 1, 40, 280, 10**6])
def test_a_family_fits_where_the_side_has_room(room: int) -> None:
    lengths = [len(s.prompt) + len(s.response) for s in family(PROMPTS, room, 4, 0)]
    assert max(lengths) <= max(room, 14) or room == 0
    assert min(lengths) > 4


def test_batch_without_a_decode_phase_sweeps_prefill_alone() -> None:
    plan = plan_batch(forced(PROMPTS, 4, 0), 4, Sampling(), (1, 8), 0, decodes=False)
    assert not [step for job in plan.jobs for step in job.steps if isinstance(step, Generate | Decode)]


def test_company_shares_prefixes_and_crosses_tile_edges() -> None:
    added = company(PROMPTS, 30, 4, 0)
    longest = max(len(s.prompt) for s in PROMPTS)
    sharing = [c for c in added if any(c.prompt[:2] == s.prompt[:2] for s in PROMPTS)]
    assert len(sharing) >= 15
    assert {15, 16, 17, 31, 32, 33} <= {len(c.prompt) for c in added}
    assert max(len(c.prompt) for c in added) > longest
    assert all(len(c.response) == 4 for c in added)


def test_made_tokens_are_tokens_of_the_workload_and_depend_on_the_seed() -> None:
    known = {token for s in PROMPTS for token in s.prompt}
    made = long_prompts(PROMPTS, (128, 259), 1)
    assert [len(s.prompt) for s in made] == [128, 259]
    assert {token for s in made for token in s.prompt} <= known
    assert made != long_prompts(PROMPTS, (128, 259), 2)
    assert made == long_prompts(PROMPTS, (128, 259), 1)


def test_forced_keeps_responses_that_the_workload_has() -> None:
    given_ = (TokenSequence((1, 2), (7, 8, 9)), TokenSequence((3,)))
    made = forced(given_, 2, 0)
    assert made[0].response == (7, 8, 9)
    assert len(made[1].response) == 2


def test_phase_reaches_every_declared_axis_through_a_proof_in_the_steps_info() -> None:
    plan = _phase(("decode", "chunked_prefill", "prefix_cache"))
    proofs = {axis: view.proof.key for view in plan.views if view.proof for axis in view.axes}
    assert proofs == {"chunked_prefill": "prefill_chunks", "prefix_cache": "cached_tokens"}
    assert {job.name for job in plan.jobs} == {DEPLOYED, "chunked_prefill", "prefix_cache"}
    assert not plan.unreachable


def test_phase_says_which_axes_it_cannot_reach_and_which_do_not_exist() -> None:
    plan = _phase(("decode", "preemption", "graphs", "batching"), {"graphs": "the CPU engine has no graphs"})
    assert plan.axes == ("decode", "preemption", "graphs")
    assert set(plan.unreachable) == {"preemption"}
    assert plan.not_applicable == {"graphs": "the CPU engine has no graphs"}


def test_phase_compares_a_deployment_with_graphs_with_the_eager_engine() -> None:
    plan = plan_phase(
        PROMPTS, 8, Sampling(), axes=("graphs",), variants={"graphs": {"enforce_eager": True}}, not_applicable={}
    )
    assert {job.name: dict(job.options) for job in plan.jobs} == {DEPLOYED: {}, "graphs": {"enforce_eager": True}}
    view = next(view for view in plan.views if "graphs" in view.axes)
    assert view.proof is not None and view.proof.step == view.reference == StepRef(DEPLOYED, "decode")


def test_phase_reads_the_cache_only_after_filling_it() -> None:
    plan = _phase(("decode", "prefix_cache"))
    cached = next(job for job in plan.jobs if job.name == "prefix_cache")
    fill, hit = cached.steps
    assert isinstance(fill, Decode) and fill.reset_cache
    assert isinstance(hit, Decode) and not hit.reset_cache and hit.prefilled == 4


def test_layout_compares_every_packing_and_the_train_forward_with_single() -> None:
    plan = plan_layout(
        forced(PROMPTS, 4, 0),
        trains=True,
        packings=("single", "padded", "packed"),
        axes=("packing", "micro_batch"),
        variants={},
        not_applicable={},
    )
    steps = {view.step.step for view in plan.views}
    assert {"single_reversed", "padded_2", "packed_3", "packed_reversed", "train_padded_5", "train_packed_5"} <= steps
    assert {axis for view in plan.views for axis in view.axes} == {"packing", "micro_batch"}


def test_layout_without_a_way_to_shard_says_that_the_axis_was_not_reached() -> None:
    plan = plan_layout(
        forced(PROMPTS, 4, 0),
        trains=False,
        packings=("engine",),
        axes=("tensor_parallel",),
        variants={},
        not_applicable={},
    )
    assert set(plan.unreachable) == {"tensor_parallel"}


@pytest.mark.parametrize("decodes", [True, False])
def test_repeat_asks_again_in_the_same_and_in_another_order(decodes: bool) -> None:
    plan = plan_repeat(forced(PROMPTS, 2, 0), 2, Sampling(), decodes=decodes)
    groups = {step.name: step.groups for step in plan.jobs[0].steps if isinstance(step, Decode | Prefill)}
    assert groups["again"] == [[0, 1, 2, 3, 4]]
    assert groups["reversed"] == [[4, 3, 2, 1, 0]]
    assert len(plan.views) == 3


def _phase(axes: tuple[str, ...], not_applicable: dict[str, str] | None = None) -> CheckPlan:
    return plan_phase(PROMPTS, 8, Sampling(), axes=axes, variants=VARIANTS, not_applicable=not_applicable or {})


def _names_only_sequences_that_exist(plan: CheckPlan) -> None:
    named = {i for job in plan.jobs for step in job.steps for group in step.groups for i in group}
    assert named <= set(range(len(plan.sequences)))
