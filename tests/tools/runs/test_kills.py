"""kill -9 of any process of a run: the ledger verifies, nothing is left after ten seconds, and there is no pass.

tests/stress/kill_moments.py does the same at fifty random moments, torchrun ranks included.
"""

from __future__ import annotations

from typing import Any

import pytest
from killing import ORPHAN_LIMIT_S, VICTIMS, Moment, kill_one

from bitgate.tools.config.project import Project

ENDLESS: dict[str, Any] = {"options": {"mischief": "forever_with_a_daemon", "when": "step"}}


@pytest.mark.parametrize("victim", VICTIMS)
def test_killing_one_process_ends_them_all_without_a_verdict(project: Project, victim: str) -> None:
    after = kill_one(project, Moment(victim, None, ENDLESS))
    assert after.killed != []
    assert after.orphans_gone_s < ORPHAN_LIMIT_S
    assert (after.verified, after.verdicts) == (True, [])
    assert after.run.state in ("lost", "failed", "cancelled")


@pytest.mark.parametrize("victim", ["server", "supervisor", "guard", "engine"])
def test_an_engine_that_holds_the_gil_is_no_refuge(project: Project, victim: str) -> None:
    after = kill_one(project, Moment(victim, None, {"options": {"mischief": "hangs_with_the_gil", "when": "step"}}))
    assert after.killed != []
    assert after.orphans_gone_s < ORPHAN_LIMIT_S
    assert (after.verified, after.verdicts) == (True, [])


@pytest.mark.engine
@pytest.mark.parametrize("victim", ["supervisor", "launcher", "guard"])
def test_torchrun_ranks_are_ended_too(project: Project, victim: str, engine_python: str) -> None:
    request = {"python": engine_python, "launcher": {"kind": "torchrun", "nproc": 2}, **ENDLESS}
    after = kill_one(project, Moment(victim, None, request))
    assert after.killed != []
    assert after.orphans_gone_s < ORPHAN_LIMIT_S
    assert (after.verified, after.verdicts) == (True, [])
    assert after.run.state in ("lost", "failed", "cancelled")
