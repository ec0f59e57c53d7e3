"""What a gate's state is, and what it says is missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bitgate.gates.table import BY_ID, GATE_IDS, GATES


def test_an_empty_ledger_has_c0_open_and_everything_that_stands_on_it_locked(world):
    assert world.states() == {"C0": "open", **{gate: "locked" for gate in GATE_IDS[1:]}}


def test_an_open_gate_names_each_missing_piece_and_the_call_that_makes_it(world):
    world.walk("C2")
    missing = {item.key: item.call for item in world.board["C3"].missing}
    assert missing == {
        "provenance_rollout": 'check_provenance(side="rollout")',
        "repeat": 'run_compare(check="repeat", side="rollout", model="tiny-slice")',
        "batch": 'run_compare(check="batch", side="rollout", model="tiny-slice")',
    }


def test_evidence_alone_does_not_pass_a_gate_until_it_is_submitted(world):
    world.meet_gate("C0")
    status = world.board["C0"]
    assert (status.state, status.ready, status.next) == ("open", True, 'submit_gate(gate="C0")')
    assert world.submit("C0").status.state == "passed"
    assert world.state("C0") == "passed"


def test_a_pass_names_its_evidence(world):
    found = world.meet_gate("C0")
    world.submit("C0")
    assert [ref.id for ref in world.board["C0"].passed.row.subject.evidence] == [found["census"].id]


def test_every_gate_that_can_pass_with_todays_tools_passes_when_its_needs_are_met(world):
    world.walk("C6")
    assert world.states() == {gate: "passed" for gate in GATE_IDS[:7]} | {
        "C7": "open", "C8": "locked", "C9": "locked", "C10": "locked",
    }  # fmt: skip


def test_all_eleven_gates_pass_once_every_tool_exists_and_people_signed(world):
    world.all_tools()
    world.walk("C10")
    assert set(world.states().values()) == {"passed"}


@pytest.mark.parametrize(
    ("gate", "need", "tool"),
    [("C7", "gradient", "check_gradient"), ("C8", "two_updates", "check_updates"), ("C9", "resume", "check_resume")],
)
def test_a_need_of_a_tool_that_does_not_exist_says_so_and_no_evidence_of_it_counts(world, gate, need, tool):
    world.walk("C6")
    forged = next(n for n in BY_ID[gate].needs if n.key == need)
    world.meet(forged)
    assert (
        world.missing(gate)[need] == f"the tool {tool} does not exist in this version; nothing can pass this need yet"
    )
    assert world.submit(gate).status.state != "passed"


@pytest.mark.parametrize("gate", [gate for gate in GATES if gate.id not in {"C0", "C1"}], ids=lambda gate: gate.id)
def test_every_gate_from_c2_on_needs_provenance_of_each_side_it_uses(gate):
    assert {f"provenance_{side}" for side in gate.sides} <= {need.key for need in gate.needs}


@pytest.mark.parametrize("gate", [gate for gate in GATES if int(gate.id[1:]) >= 5], ids=lambda gate: gate.id)
def test_c5_and_later_want_observed_evidence(gate):
    assert {need.grade for need in gate.needs} == {"observed"}


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.id)
def test_prerequisites_come_before_their_gate(gate):
    assert all(GATE_IDS.index(p) < GATE_IDS.index(gate.id) for p in gate.prerequisites)


CASES = [
    (gate.id, need.key)
    for gate in GATES
    if gate.id in {"C0", "C2", "C3", "C4", "C5", "C6"}
    for need in gate.needs
]  # fmt: skip


@pytest.mark.parametrize(("gate", "need"), CASES)
def test_leaving_out_one_need_keeps_the_gate_open_and_names_exactly_that_need(world, gate, need):
    before = GATE_IDS[GATE_IDS.index(gate) - 1] if gate != "C0" else None
    if before:
        world.walk(before)
    if need.startswith("provenance"):
        world.today = replace(world.today, now="2026-12-05T12:00:00.000Z")  # the walk's provenance is too old by now
        world.clock.at = world.clock.at.replace(day=30)
        found = {item.key for item in world.board[gate].missing}
        assert need in found
        return
    kept = [n for n in BY_ID[gate].needs if n.key != need and not n.key.startswith("provenance")]
    for n in kept:
        world.meet(n)
    for n in BY_ID[gate].needs:
        if n.key.startswith("provenance"):
            world.meet(n)
    assert set(world.missing(gate)) == {need}
    assert world.submit(gate).status.state == "open"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"verdict": "inconclusive"}, "says inconclusive"),
        ({"verdict": "invalid"}, "says invalid"),
        ({"grade": "attested"}, "its grade is attested"),
        ({"figures": {"comparisons": {"rollout/recompute": {"compared": 9}}}}, "lacking first_train_forward"),
        (
            {"figures": {"comparisons": {"rollout/recompute/first_train_forward": {"compared": 0}}}},
            "legs compared: none",
        ),
        ({"figures": {}}, "legs compared: none"),
        ({"sides": []}, "side rollout (rollout) is not in it"),
        ({"models": []}, "it was not made on the slice model"),
        ({"coverage": {"missing": {"graphs": "eager"}}}, "axis graphs was not exercised"),
    ],
)
def test_evidence_that_falls_short_does_not_count_and_says_why(world, changes, says):
    world.walk("C4")
    world.meet_gate("C5", "rollout_vs_trainer")
    world.meet(BY_ID["C5"].needs[2], **changes)
    assert says in world.missing("C5")["rollout_vs_trainer"]
    assert world.state("C5") == "open"


def test_a_declared_axis_that_was_not_exercised_keeps_c4_open(world):
    world.walk("C3")
    world.meet_gate("C4", "phase")
    world.meet(BY_ID["C4"].needs[1], coverage={"exercised": []})
    assert "axis decode is declared and was not exercised" in world.missing("C4")["phase"]


def test_an_axis_that_does_not_exist_on_the_platform_is_covered_by_saying_so(world):
    world.walk("C3")
    world.meet_gate("C4", "phase")
    world.meet(BY_ID["C4"].needs[1], coverage={"not_applicable": {"decode": "no such thing here"}})
    assert world.submit("C4").status.state == "passed"


def test_a_fail_under_todays_digests_fails_the_gate_and_a_later_pass_does_not_explain_it(world):
    world.walk("C2")
    world.meet_gate("C3")
    bad = world.meet(BY_ID["C3"].needs[2], verdict="fail")
    world.meet(BY_ID["C3"].needs[2])
    status = world.submit("C3").status
    assert status.state == "failed"
    assert bad.id in world.missing("C3")["batch"] and "does not explain it" in world.missing("C3")["batch"]


def test_a_fail_is_answered_by_changing_what_failed(world):
    world.walk("C2")
    world.meet_gate("C3")
    world.meet(BY_ID["C3"].needs[2], verdict="fail")
    world.changed(rollout=world.other_rollout)
    world.meet_gate("C3")
    assert world.submit("C3").status.state == "passed"


def test_an_attested_fail_counts_against_a_gate_that_wants_observed_passes(world):
    world.walk("C4")
    world.meet_gate("C5")
    world.meet(BY_ID["C5"].needs[2], verdict="fail", grade="attested")
    assert world.state("C5") == "failed"


def test_a_fail_on_another_model_or_under_tried_options_is_not_a_counterexample(world):
    world.walk("C2")
    world.meet_gate("C3")
    batch = BY_ID["C3"].needs[2]
    world.meet(batch, verdict="fail", models=[world.today.models["full"].record])
    world.meet(
        batch, verdict="fail", sides=[world.today.sides["rollout"].record.model_copy(update={"configured": False})]
    )
    assert world.submit("C3").status.state == "passed"


def test_the_newest_provenance_decides(world):
    world.walk("C3")
    provenance = BY_ID["C3"].needs[0]
    world.meet(provenance, verdict="fail")
    assert world.state("C3") == "failed"
    world.meet(provenance)
    assert world.state("C3") == "passed"


def test_a_rerun_with_the_same_result_changes_nothing(world):
    world.walk("C3")
    before = world.board["C3"].subject
    world.meet_gate("C3")
    assert world.state("C3") == "passed"
    assert world.board["C3"].subject == before


def test_submitting_again_records_nothing_new(world):
    world.walk("C0")
    head = world.store.head()
    assert world.submit("C0").entry is None
    assert world.store.head() == head


def test_a_submission_that_does_not_pass_is_recorded_with_what_is_missing(world):
    world.walk("C2")
    submission = world.submit("C3")
    assert submission.entry.body["state"] == "open"
    assert [text.partition(":")[0] for text in submission.entry.body["missing"]] == [
        "provenance_rollout",
        "repeat",
        "batch",
    ]


@pytest.mark.parametrize(
    ("policy", "key"),
    [
        ({"updates_per_step": None}, "policy_declared"),
        ({"corrections": None}, "policy_declared"),
        ({"cross_rank_reduction": None}, "policy_declared"),
        ({"updates_per_step": 4}, "one_update_a_step"),
    ],
)
def test_c0_asks_for_a_declared_policy_with_one_update_a_step(world, policy, key):
    world.today = replace(world.today, policy=replace(world.today.policy, **policy))
    world.meet_gate("C0")
    assert set(world.missing("C0")) == {key}


@pytest.mark.parametrize("role", ["rollout", "trainer"])
def test_c0_asks_for_a_route_on_both_sides(world, role):
    world.today = replace(world.today, sides={name: s for name, s in world.today.sides.items() if name != role})
    world.meet_gate("C0")
    assert set(world.missing("C0")) == {"routes"}


def test_c6_asks_for_a_repro_of_every_earlier_divergence(world):
    world.walk("C5")
    old = world.today
    world.changed(rollout=world.other_rollout)
    bad = world.meet(BY_ID["C3"].needs[2], verdict="fail")
    world.today = old
    world.meet_gate("C6")
    assert set(world.missing("C6")) == {"divergences_have_repros"}
    assert bad.id in world.missing("C6")["divergences_have_repros"]
    reference = world.store.artifacts.put_bytes(b"raise SystemExit(1)", name="repro-run.py", media_type="text/x-python")
    found = {"verdict": "fail", "sides": [world.other_rollout], "artifacts": (reference,)}
    world.evidence("bisect_layer", "phase", **found)
    assert set(world.missing("C6")) == {"divergences_have_repros"}  # a repro of something else
    world.evidence("bisect_layer", "batch", **found)
    assert world.submit("C6").status.state == "passed"


def test_no_number_of_later_failures_makes_c6_forget_an_earlier_one(world):
    world.walk("C5")
    old = world.today
    world.changed(rollout=world.other_rollout)
    bad = world.meet(BY_ID["C3"].needs[2], verdict="fail")
    world.today = old
    tried = world.other_rollout.model_copy(update={"configured": False})
    for _ in range(120):
        world.evidence("run_compare", "batch", verdict="fail", sides=[tried])
    world.meet_gate("C6")
    assert bad.id in world.missing("C6")["divergences_have_repros"]


def test_the_floor_is_held_against_the_lower_end(world):
    world.all_tools()
    world.walk("C9")
    world.meet_gate("C10", "speed")
    world.meet(BY_ID["C10"].needs[3], figures={"ratio": 0.8, "ratio_low": 0.69})
    assert "the lower end is 0.6900, the floor is 0.7000" in world.missing("C10")["speed"]


def test_c9_waits_for_a_person_before_the_full_model_is_run(world):
    world.all_tools()
    world.walk("C8")
    assert world.state("C9") == "awaiting"
    world.vote("C9")
    assert world.state("C9") == "open"
    world.meet_gate("C9")
    assert world.submit("C9").status.state == "passed"


def test_the_slice_does_not_stand_in_for_the_full_model(world):
    world.all_tools()
    world.walk("C8")
    world.vote("C9")
    world.meet_gate("C9", models=[world.today.models["slice"].record])
    assert "it was not made on the full model" in world.missing("C9")["repeat_full"]
