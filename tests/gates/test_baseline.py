"""The baseline is proposed by its agent, frozen by a person, and immutable afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bitgate.gates.baseline import freeze_of, manifest_changes, propose
from bitgate.gates.errors import BaselineRefused, RoleRefused
from bitgate.gates.roles import Actor
from bitgate.gates.table import BY_ID

ANN = Actor("baseline", "ann-agent")


@pytest.fixture
def frozen(world):
    world.walk("C1")
    return world


def faster(world):
    return world.side("baseline", options={"batch_invariant": False, "block_size": 64})


def test_a_proposal_alone_freezes_nothing(world):
    world.walk("C0")
    world.meet_gate("C1")
    world.propose()
    assert freeze_of(world.store) is None
    assert world.state("C1") == "awaiting"


def test_the_manifest_holds_sides_provenance_tuning_and_noise_floor(world):
    world.walk("C0")
    found = world.meet_gate("C1")
    manifest = world.propose().manifest
    assert manifest.sides["baseline"].digest == world.today.sides["baseline"].record.digest
    assert manifest.provenance == (found["provenance_baseline"].id,)
    assert manifest.noise_floor == (found["noise_floor"].id,)
    assert manifest.breakdown == (found["breakdown"].id,)
    assert len(manifest.tuning) == 1


def test_a_freeze_is_values_for_the_tools(frozen):
    freeze = freeze_of(frozen.store)
    assert (freeze.version, freeze.digests) == (1, {"baseline": frozen.today.sides["baseline"].record.digest})


def test_proposing_the_same_again_writes_nothing(frozen):
    head = frozen.store.head()
    manifest = frozen.view.proposals[-1].manifest
    again = propose(frozen.store, frozen.today, ANN, workload="w", tuning=manifest.tuning)
    assert (again.entry, again.manifest, frozen.store.head()) == (None, manifest, head)


@pytest.mark.attack
def test_drift_is_named_and_makes_c1_stale(frozen):
    frozen.changed(baseline=frozen.side("baseline", options={"batch_invariant": True}))
    assert frozen.state("C1") == "stale"
    assert frozen.board["C1"].changes == ("side baseline: option batch_invariant false -> true",)


@pytest.mark.attack
def test_drift_is_seen_in_the_configuration_before_any_provenance_of_it(frozen):
    slower = frozen.side("baseline", options={"batch_invariant": True})
    side = replace(
        frozen.today.sides["baseline"], record=None, configured=slower.model_copy(update={"digest": "", "stable": {}})
    )
    frozen.today = replace(frozen.today, sides={**frozen.today.sides, "baseline": side})
    assert frozen.state("C1") == "stale"
    assert "side baseline: option batch_invariant false -> true" in frozen.board["C1"].changes


@pytest.mark.attack
def test_a_later_proposal_does_not_unfreeze_what_is_in_force(frozen):
    old = freeze_of(frozen.store)
    before = frozen.today
    frozen.changed(baseline=faster(frozen))
    frozen.meet_gate("C1")
    frozen.propose()
    assert freeze_of(frozen.store) == old
    frozen.today = before
    assert frozen.state("C1") == "passed"


def test_a_new_version_needs_a_person_and_makes_c10_stale(world):
    world.all_tools()
    world.walk("C10")
    world.changed(baseline=faster(world))
    world.freeze()
    assert freeze_of(world.store).version == 2
    assert world.state("C1") == "passed"
    assert world.state("C10") == "stale"
    assert "baseline: version 1 -> version 2" in world.board["C10"].changes
    assert world.board["C10"].votes[0].outdated == "the baseline is version 2, the vote was on version 1"


def test_the_new_versions_vote_is_not_the_old_ones(frozen):
    frozen.changed(baseline=faster(frozen))
    frozen.meet_gate("C1")
    frozen.propose()
    status = frozen.board["C1"]
    assert status.state == "awaiting"
    assert status.votes[0].outdated == "the baseline is version 2, the vote was on version 1"


def test_a_rejection_after_the_freeze_unfreezes(frozen):
    frozen.vote("C1", "reject", "it runs the batch-invariant SiLU kernel")
    assert freeze_of(frozen.store) is None


def test_speed_against_a_drifted_baseline_does_not_count(world):
    world.all_tools()
    world.walk("C9")
    world.meet_gate("C10", "speed")
    speed = next(need for need in BY_ID["C10"].needs if need.key == "speed")
    world.meet(speed, sides=[world.today.sides["rollout"].record, faster(world)])
    assert "side baseline: option block_size 64 -> (unset)" in world.missing("C10")["speed"]


@pytest.mark.parametrize("role", ["consistency", "observer"])
def test_only_the_baseline_agent_proposes(world, role):
    with pytest.raises(RoleRefused):
        propose(world.store, world.today, Actor(role, "x"))


def test_a_baseline_that_was_not_observed_cannot_be_proposed(world):
    side = replace(world.today.sides["baseline"], record=None, unknown="side baseline: never observed")
    world.today = replace(world.today, sides={**world.today.sides, "baseline": side})
    with pytest.raises(BaselineRefused, match='never observed; call check_provenance\\(side="baseline"\\) first'):
        propose(world.store, world.today, ANN)


@pytest.mark.parametrize("make", [lambda w: "ev_00000000000000000000", lambda w: w.evidence("run_compare", "batch").id])
def test_a_tuning_record_is_ab_evidence_of_this_ledger(world, make):
    with pytest.raises(BaselineRefused, match="allowed: ids of ab_benchmark evidence"):
        propose(world.store, world.today, ANN, tuning=[make(world)])


def test_c1_asks_for_a_tuning_record(world):
    world.walk("C0")
    world.meet_gate("C1")
    propose(world.store, world.today, ANN)
    assert set(world.missing("C1")) == {"tuning_record"}


def test_what_a_new_version_changes_is_said_for_the_person_who_decides(frozen):
    old = frozen.view.frozen
    frozen.changed(baseline=faster(frozen))
    new = frozen.propose().manifest
    assert manifest_changes(None, old) == ["the first version: nothing to compare with"]
    assert "side baseline: option block_size (unset) -> 64" in manifest_changes(old, new)
