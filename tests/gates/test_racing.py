"""Two servers on one ledger at once: submits that race, and evidence that arrives in between."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from bitgate.gates.ledger import LedgerView
from bitgate.gates.roles import Actor
from bitgate.gates.submit import submit
from bitgate.gates.table import BY_ID
from bitgate.gates.verify import verify
from bitgate.store import Store


@pytest.mark.attack
def test_racing_submissions_record_one_pass(world):
    world.meet_gate("C0")
    path = world.store.ledger.path

    def one(number: int) -> str:
        with Store.open(path, clock=world.clock) as store:
            return submit(store, "C0", world.today, Actor("consistency", f"agent-{number}")).status.state

    with ThreadPoolExecutor(8) as pool:
        states = list(pool.map(one, range(16)))
    assert states == ["passed"] * 16
    assert [entry.body["state"] for entry in world.store.entries("gate")] == ["passed"]


@pytest.mark.attack
def test_a_fail_that_arrives_between_looking_and_submitting_is_seen(world):
    world.walk("C2")
    world.meet_gate("C3")
    assert LedgerView(world.store).board(world.today)["C3"].ready
    world.meet(BY_ID["C3"].needs[2], verdict="fail")
    assert world.submit("C3").status.state == "failed"


@pytest.mark.attack
def test_a_fail_that_arrives_after_the_pass_fails_the_gate(world):
    world.walk("C3")
    world.meet(BY_ID["C3"].needs[2], verdict="fail")
    assert world.state("C3") == "failed"


@pytest.mark.attack
def test_agents_of_both_roles_and_evidence_at_once_leave_a_ledger_that_verifies(world, signers):
    world.walk("C0")
    path = world.store.ledger.path

    def work(number: int) -> None:
        role = "baseline" if number % 2 else "consistency"
        with Store.open(path, clock=world.clock) as store:
            for need in BY_ID["C1" if number % 2 else "C3"].needs:
                run = store.start_run(need.tool, {}, f"{role}:{number}")
                store.finish_run(run.id, "cancelled")
            submit(store, "C1" if number % 2 else "C2", world.today, Actor(role, str(number)))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(12)))
    assert verify(path, reviewers=signers).problems == []
