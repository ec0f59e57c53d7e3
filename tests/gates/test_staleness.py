"""Gates go stale by themselves and say what changed; what changes from day to day never makes anything stale."""

from __future__ import annotations

from dataclasses import replace

import pytest

ENV = {"VLLM_ATTENTION_BACKEND": "FLASH_ATTN"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"options": {"batch_invariant": False}}, "side rollout: option batch_invariant true -> false"),
        ({"options": {}}, "side rollout: option batch_invariant true -> (unset)"),
        ({"options": {"batch_invariant": True, "block_size": 32}}, "side rollout: option block_size (unset) -> 32"),
        ({"engine": "transformers"}, "side rollout: engine vllm -> transformers"),
        ({"axes": ("decode", "graphs")}, 'side rollout: axes ["decode"] -> ["decode", "graphs"]'),
        ({"env": ENV}, 'side rollout: env VLLM_ATTENTION_BACKEND (unset) -> "FLASH_ATTN"'),
        ({"stable": {"vllm": "0.33.0", "attention": "CPU_ATTN"}}, 'side rollout: observed vllm "0.32.0" -> "0.33.0"'),
        ({"stable": {"vllm": "0.32.0"}}, 'side rollout: observed attention "CPU_ATTN" -> (unset)'),
    ],
)
def test_a_changed_side_makes_its_gates_stale_and_the_change_is_named(world, changes, says):
    world.walk("C6")
    world.changed(rollout=world.side("rollout", **changes))
    states = world.states()
    assert [states[gate] for gate in ("C0", "C1", "C2")] == ["passed"] * 3
    assert [states[gate] for gate in ("C3", "C4", "C5", "C6")] == ["stale"] * 4
    assert says in world.board["C3"].changes


def test_a_change_in_a_nested_fact_is_named_by_its_path(world):
    world.changed(rollout=world.side("rollout", stable={"linear": {"kernel": "tiles", "rows": 8}}))
    world.walk("C3")
    world.changed(rollout=world.side("rollout", stable={"linear": {"kernel": "tiles", "rows": 16}}))
    assert world.board["C3"].changes[0] == "side rollout: observed linear rows 8 -> 16"


def test_putting_the_change_back_makes_the_gates_pass_again(world):
    world.walk("C5")
    before = world.today
    world.changed(rollout=world.other_rollout)
    assert world.state("C5") == "stale"
    world.today = before
    assert world.state("C5") == "passed"


def test_the_trainer_changing_leaves_the_rollouts_own_gates_alone(world):
    world.walk("C5")
    world.changed(trainer=world.side("trainer", engine="transformers"))
    states = world.states()
    assert (states["C3"], states["C4"], states["C5"]) == ("passed", "passed", "stale")
    assert world.board["C5"].changes == ("side trainer: engine vllm_kernels -> transformers",)


def test_new_weights_make_the_gates_of_that_model_stale(world):
    world.walk("C3")
    slice_ = replace(world.today.models["slice"], record=world.model("tiny-slice", slice_of="tiny", weights="trained"))
    world.today = replace(world.today, models={**world.today.models, "slice": slice_})
    assert (world.state("C2"), world.state("C3")) == ("stale", "stale")
    assert world.board["C3"].changes[-1].startswith("model slice: architecture") or "weights" in " ".join(
        world.board["C3"].changes
    )


def test_files_changed_since_the_provenance_make_the_side_unknown_and_say_which(world):
    world.walk("C3")
    rollout = world.today.sides["rollout"]
    why = "side rollout: vllm/attention/layer.py changed since its provenance"
    world.today = replace(
        world.today, sides={**world.today.sides, "rollout": replace(rollout, record=None, unknown=why)}
    )
    assert world.state("C3") == "stale"
    assert why in world.board["C3"].changes
    assert world.board["C3"].missing[0].call == 'check_provenance(side="rollout")'


def test_old_provenance_counts_as_unknown(world):
    world.walk("C3")
    world.today = replace(world.today, now="2026-12-05T12:00:00.000Z")
    assert world.state("C3") == "stale"
    assert "is older than 24 hours (policy.provenance_max_age)" in world.missing("C3")["provenance_rollout"]


def test_provenance_from_the_future_does_not_count(world):
    world.walk("C3")
    world.today = replace(world.today, now="2026-11-20T12:00:00.000Z")
    assert "in the future" in world.missing("C3")["provenance_rollout"]


def test_renewing_provenance_alone_makes_a_gate_pass_again_without_another_run(world):
    world.walk("C5")
    world.clock.at = world.clock.at.replace(year=2027)
    world.today = replace(world.today, now="2027-11-30T11:30:00.000Z")
    assert world.state("C5") == "stale"
    for side in ("rollout", "trainer"):
        world.evidence("check_provenance", sides=[world.today.sides[side].record])
    assert world.state("C5") == "passed"


def test_a_stale_gate_is_passed_by_new_evidence_and_a_new_submission(world):
    world.walk("C3")
    world.changed(rollout=world.side("rollout", options={"batch_invariant": True, "block_size": 32}))
    world.meet_gate("C3")
    assert world.state("C3") == "stale" and world.board["C3"].ready
    assert world.submit("C3").status.state == "passed"


def test_the_same_project_from_two_jobs_hosts_and_days_stays_passed(world):
    """Volatile facts are recorded and never compared: the second day's records differ in every one of them."""
    first = {
        "job_id": "17",
        "host": "node-a",
        "pid": 4242,
        "started": "2026-11-30T08:00:00Z",
        "clock_mhz": 2100,
        "cache_dir": "/x/1",
    }
    second = {
        "job_id": "93",
        "host": "node-b",
        "pid": 17,
        "started": "2026-12-01T23:00:00Z",
        "clock_mhz": 3300,
        "cache_dir": "/y/2",
    }
    world.changed(
        rollout=world.side("rollout", volatile=first),
        trainer=world.side("trainer", engine="vllm_kernels", volatile=first),
    )
    world.walk("C6")
    on_first_day = {gate: status.subject.digest for gate, status in world.board.items()}
    world.changed(
        rollout=world.side("rollout", volatile=second),
        trainer=world.side("trainer", engine="vllm_kernels", volatile=second),
    )
    world.meet_gate("C3")
    assert {gate: status.subject.digest for gate, status in world.board.items()} == on_first_day
    assert [status.state for status in world.board.values()][:7] == ["passed"] * 7


def test_policy_that_a_gate_binds_makes_it_stale_by_name(world):
    world.walk("C0")
    world.today = replace(world.today, policy=replace(world.today.policy, corrections=("TIS",)))
    assert world.state("C0") == "stale"
    assert world.board["C0"].changes == ("policy: corrections [] -> ['TIS']",)


def test_lowering_the_floor_sends_c10_back_to_a_person(world):
    world.all_tools()
    world.walk("C10")
    world.today = replace(world.today, policy=replace(world.today.policy, rollout_floor=0.5))
    assert world.state("C10") == "awaiting"
    assert world.board["C10"].changes == ("policy: rollout_floor 0.7 -> 0.5",)
    assert "changed since: policy" in world.board["C10"].votes[0].outdated


def test_a_prerequisite_that_goes_stale_takes_what_stands_on_it_along(world):
    world.walk("C5")
    world.today = replace(world.today, policy=replace(world.today.policy, updates_per_step=2))
    board = world.board
    assert board["C0"].state == "stale"
    assert board["C2"].changes == ("C0 is no longer passed",)


def test_a_side_that_is_no_longer_configured_is_named(world):
    world.walk("C5")
    world.today = replace(world.today, sides={name: s for name, s in world.today.sides.items() if name != "trainer"})
    assert "side trainer: no longer configured" in world.board["C5"].changes
