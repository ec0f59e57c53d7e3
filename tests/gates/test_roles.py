"""Who may run, change or propose what. Each row of the tables is one attempt of somebody who may not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bitgate.gates.errors import RoleRefused
from bitgate.gates.roles import Actor, Call, SideInCall, check_call

FROZEN = {"baseline": "f" * 64}
ROLLOUT, TRAINER = SideInCall("rollout", digest="a" * 64), SideInCall("trainer", digest="b" * 64)
BASELINE = SideInCall("baseline", digest="f" * 64)
CANDIDATE = SideInCall("cand", owner="baseline", digest="c" * 64)
DRIFTED = replace(BASELINE, digest="d" * 64)
TRIED = replace(BASELINE, configured=False)
ALIAS = SideInCall("fast", owner="consistency", digest="f" * 64)
TOOLS = ("run_compare", "bisect_layer", "slice_model", "ab_benchmark", "check_provenance")


def attempt(role, tool, *sides, frozen=None, **more):
    check_call(Actor(role, "x"), Call(tool, sides=sides, frozen=frozen or {}, **more))


REFUSED = [
    *(("observer", tool, (ROLLOUT,), {}) for tool in (*TOOLS, "submit_gate", "propose_baseline", "cancel_run")),
    *(("observer", tool, (), {}) for tool in ("submit_gate", "propose_baseline", "cancel_run")),
    *(("baseline", tool, (side,), {}) for tool in TOOLS for side in (ROLLOUT, TRAINER)),
    *(("baseline", tool, (CANDIDATE, ROLLOUT), {}) for tool in TOOLS),
    *(("consistency", tool, (BASELINE,), {}) for tool in TOOLS),
    *(("consistency", tool, (CANDIDATE,), {}) for tool in TOOLS),
    *(("consistency", tool, (ROLLOUT, BASELINE), {}) for tool in TOOLS),
    *(("consistency", tool, (BASELINE,), FROZEN) for tool in ("run_compare", "bisect_layer", "slice_model")),
    *(("baseline", tool, (BASELINE,), FROZEN) for tool in ("run_compare", "bisect_layer", "slice_model")),
    *((role, tool, (TRIED,), FROZEN) for role in ("baseline", "consistency") for tool in TOOLS),
    *((role, "run_compare", (ALIAS,), FROZEN) for role in ("baseline", "consistency")),
    ("consistency", "ab_benchmark", (ROLLOUT, DRIFTED), FROZEN),
    ("consistency", "ab_benchmark", (DRIFTED,), FROZEN),
    ("baseline", "ab_benchmark", (ROLLOUT, DRIFTED), FROZEN),
    ("consistency", "propose_baseline", (), {}),
    ("somebody", "run_compare", (ROLLOUT,), {}),
    ("", "run_compare", (ROLLOUT,), {}),
]


@pytest.mark.parametrize(("role", "tool", "sides", "frozen"), REFUSED)
@pytest.mark.attack
def test_the_role_may_not(role, tool, sides, frozen):
    with pytest.raises(RoleRefused) as refused:
        attempt(role, tool, *sides, frozen=frozen)
    assert len(str(refused.value)) > 20


@pytest.mark.parametrize("gate", ["C2", "C3", "C4", "C5", "C6", "C7", "C8", "C9", "C10"])
def test_the_baseline_agent_submits_only_scope_and_baseline(gate):
    with pytest.raises(RoleRefused, match=f"role baseline may not submit {gate}"):
        attempt("baseline", "submit_gate", gate=gate)


def test_the_consistency_agent_does_not_submit_the_baseline():
    with pytest.raises(RoleRefused, match="role consistency may not submit C1"):
        attempt("consistency", "submit_gate", gate="C1")


@pytest.mark.parametrize(("role", "by"), [("baseline", "consistency:bo"), ("consistency", "baseline:ann")])
@pytest.mark.attack
def test_a_role_does_not_cancel_the_others_runs(role, by):
    with pytest.raises(RoleRefused, match="may cancel its own runs"):
        attempt(role, "cancel_run", started_by=by)


ALLOWED = [
    *(
        (role, tool, (), {})
        for role in ("observer", "baseline", "consistency")
        for tool in ("get_gates", "get_evidence", "get_run")
    ),
    *(("consistency", tool, (ROLLOUT, TRAINER), {}) for tool in TOOLS),
    *(("consistency", tool, (replace(ROLLOUT, configured=False),), FROZEN) for tool in TOOLS),
    *(("baseline", tool, (CANDIDATE, BASELINE), {}) for tool in TOOLS),
    *(
        (role, tool, (BASELINE,), FROZEN)
        for role in ("baseline", "consistency")
        for tool in ("ab_benchmark", "check_provenance")
    ),
    ("consistency", "ab_benchmark", (ROLLOUT, BASELINE), FROZEN),
    ("consistency", "check_provenance", (DRIFTED,), FROZEN),
    ("baseline", "ab_benchmark", (DRIFTED, CANDIDATE), FROZEN),
    ("baseline", "propose_baseline", (), {}),
]


@pytest.mark.parametrize(("role", "tool", "sides", "frozen"), ALLOWED)
def test_the_role_may(role, tool, sides, frozen):
    attempt(role, tool, *sides, frozen=frozen)


def test_the_refusal_of_a_drifted_baseline_names_its_reason_code():
    with pytest.raises(RoleRefused, match="invalid: baseline_drift"):
        attempt("consistency", "ab_benchmark", DRIFTED, ROLLOUT, frozen=FROZEN)


@pytest.mark.attack
def test_an_unknown_identity_is_not_taken_for_the_frozen_one_by_name_alone():
    """The digest is known only once the run was observed: the result then says whether it counts."""
    attempt("consistency", "ab_benchmark", replace(BASELINE, digest=None), ROLLOUT, frozen=FROZEN)


@pytest.mark.parametrize(
    ("gate", "role"), [("C1", "consistency"), ("C5", "baseline"), ("C5", "observer"), ("C1", "observer")]
)
@pytest.mark.attack
def test_a_submission_by_the_wrong_role_writes_nothing(world, gate, role):
    head = world.store.head()
    with pytest.raises(RoleRefused):
        world.submit(gate, Actor(role, "x"))
    assert world.store.head() == head


@pytest.mark.parametrize("first", ["baseline", "consistency"])
def test_both_agents_work_on_one_ledger_in_either_order(world, first):
    world.walk("C0")
    steps = {
        "baseline": world.freeze,
        "consistency": lambda: (world.meet_gate("C2"), world.submit("C2"), world.meet_gate("C3"), world.submit("C3")),
    }
    order = [first, *(name for name in steps if name != first)]
    for name in order:
        steps[name]()
    states = world.states()
    assert [states[gate] for gate in ("C0", "C1", "C2", "C3")] == ["passed"] * 4
