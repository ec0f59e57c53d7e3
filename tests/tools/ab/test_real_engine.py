"""ab_benchmark on real vLLM engines: a side against itself, then against a frozen digest without and with a pass."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
from jumping_clock import jumping_clock
from tool_runs import evidence_of
from vllm_project import made_project, vllm_side, workload

from bitgate.store.records import Evidence
from bitgate.tools.ab.known import Band, BitPass, Freeze, LedgerFacts
from bitgate.tools.ab_benchmark import AbRequest
from bitgate.tools.config.digests import NUMERIC_PREFIXES
from bitgate.tools.config.project import Project

pytestmark = pytest.mark.engine
BLOCKS = {"blocks": 3, "null_blocks": 3, "warm_up": 1, "turn_s": 0.2}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, engine_python: str) -> Project:
    baseline = vllm_side("baseline", engine_python)
    invariant = {"batch_invariant": True}
    rollout = vllm_side("rollout", engine_python, options=invariant, expect='backends = { "*" = "*" }')
    root = tmp_path_factory.mktemp("speed")
    # Where there is no C compiler the clock runs as all others do, and the test of it says so.
    preload = {"LD_PRELOAD": str(library)} if (library := jumping_clock(root)) else None
    jumping = vllm_side("jumping", engine_python, env=preload)
    return made_project(root, engine_python, baseline, rollout, jumping, workload(16, 8, (5, 20)), layers=1)


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(NUMERIC_PREFIXES)]:
        monkeypatch.delenv(name)


def measured(project: Project, known: LedgerFacts | None = None, **request: Any) -> Evidence:
    """As the server starts it: with what it read in the ledger."""
    facts = (known or LedgerFacts(read=True)).model_dump(mode="json")
    return evidence_of(project, "ab_benchmark", AbRequest(**BLOCKS, **request), 240, known=facts)


def codes(evidence: Evidence) -> dict[str, str]:
    """Without what the neighbours on a shared machine do."""
    return {reason.code: reason.detail for reason in evidence.reasons if reason.code != "device_busy"}


@pytest.fixture(scope="module")
def null_run(project: Project) -> Evidence:
    return measured(project, side="baseline", other="baseline")


def test_a_side_against_itself_in_two_processes_runs_at_one(null_run: Evidence) -> None:
    figures: dict[str, Any] = dict(null_run.figures)
    assert null_run.check == "aa" and null_run.grade == "observed"
    assert (figures["pairs"], figures["method"]) == (6, "t_on_blocks")
    biased = not figures["ratio_low"] <= 1.0 <= figures["ratio_high"]
    assert set(codes(null_run)) == ({"null_run_biased"} if biased else set())
    assert (null_run.verdict == "pass") == (not null_run.reasons)
    # Whoever works beside it on a shared machine may bias it, and is then named; alone, it runs at one.
    assert not biased or "device_busy" in {reason.code for reason in null_run.reasons}, codes(null_run)
    assert isinstance(figures["detectable"], float)
    # By process, that is another question, and another answer: in one block of three the two stood for each other.
    assert figures["processes"]["pairs"] == 6 and figures["processes"]["ratio"] != figures["ratio"]
    both = [figures["baseline (a)"], figures["baseline (b)"]]
    assert [side["tokens"] for side in both] == [6 * figures["rounds_per_turn"] * 8 * 16] * 2


def frozen(null_run: Evidence, digest: str, lowest: float) -> Freeze:
    workload = str(null_run.figures["workload"])
    band = Band(evidence_id=null_run.id, workload=workload, median=2 * lowest, lowest=lowest)
    return Freeze(version=1, manifest="m" * 64, digests={"baseline": digest}, band=band)


def test_against_a_freeze_the_digest_the_band_and_a_fresh_bit_pass_decide(project: Project, null_run: Evidence) -> None:
    """The same two sides twice: once every veto of the freeze stands, once none does, and the floor alone decides."""
    [digest] = {record.digest for record in null_run.sides.values()}
    drifted = LedgerFacts(read=True, freeze=frozen(null_run, "0" * 64, 1e9))
    voided = measured(project, drifted, side="rollout")
    found = codes(voided)
    assert voided.check == "floor" and voided.verdict == "invalid"
    assert {"baseline_drift", "baseline_slowed", "no_fresh_bit_pass"} <= set(found), found
    assert found["baseline_drift"] == f"side baseline: {digest[:12]} ran, {'0' * 12} is frozen (version 1)"
    assert null_run.id in found["baseline_slowed"]
    assert found["no_fresh_bit_pass"].startswith("no pass for side rollout as it ran")

    rollout, model = voided.sides["rollout"], voided.models["rollout"]
    passed = BitPass(
        evidence_id="ev_1",
        finished_at="",
        side_digest=rollout.digest,
        architecture_digest=model.architecture_digest,
        weights_digest=model.weights_digest,
    )
    lowest = 1e-3
    counted = measured(
        project,
        LedgerFacts(read=True, freeze=frozen(null_run, digest, lowest), bit_passes=(passed,)),
        side="rollout",
    )
    # A crowded machine may show any ratio, and says so; without neighbours the floor alone decides.
    crowd = {"null_run_biased", "too_good"} if "device_busy" in {r.code for r in counted.reasons} else set()
    assert set(codes(counted)) <= {"below_floor", "floor_not_shown", *crowd}, codes(counted)
    figures: dict[str, Any] = dict(counted.figures)
    assert (figures["floor"], figures["pairs"]) == (0.7, 6)
    assert counted.sides["baseline"].digest == digest
    assert counted.verdict == _verdict(figures) or "device_busy" in {reason.code for reason in counted.reasons}


def _verdict(figures: dict[str, Any]) -> str:
    if figures["ratio_low"] >= figures["floor"]:
        return "pass"
    return "fail" if figures["ratio_high"] < figures["floor"] else "inconclusive"


def test_a_clock_that_jumps_while_turns_are_served_voids_the_run_and_moves_no_time(project: Project) -> None:
    """The wall clock of one side's process goes an hour ahead twenty times a second; what is timed is steady."""
    if "LD_PRELOAD" not in project.side("jumping").env:
        pytest.skip("not shown here: there is no C compiler, so that the clock of one process cannot be changed")
    evidence = measured(project, side="jumping", other="baseline")
    found = codes(evidence)
    assert evidence.verdict == "invalid" and "clock_jumped" in found, found
    assert found["clock_jumped"].endswith(" by wall") and " by the monotonic clock, " in found["clock_jumped"]
    monotonic, wall = (float(word) for word in re.findall(r"(-?[0-9.]+) s by", found["clock_jumped"]))
    assert abs(wall - monotonic) > 1000, found
    # Nothing that was timed has moved: an hour in a turn of a second would be a ratio of thousands.
    figures: dict[str, Any] = dict(evidence.figures)
    assert 0.2 < figures["ratio"] < 5 and figures["jumping"]["ttft_ms"]["p99"] < 60_000
