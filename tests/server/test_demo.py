"""The demo, whole: real vLLM and trainers on this CPU, through a real MCP client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bitgate.server.demo.acts import ACTS
from bitgate.store import Store, verify_ledger
from bitgate.store.records import Evidence


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, engine_python: str) -> tuple[str, list[Evidence], Path]:
    """What the demo printed, its evidence in order, and its ledger. Another seed than `make demo` uses."""
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-m", "bitgate.server", "demo", str(folder), "--python", engine_python, "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    ledger = folder / ".bitgate" / "ledger.db"
    with Store.open(ledger) as store:
        return done.stdout, store.list_evidence(limit=100)[::-1], ledger


@pytest.mark.engine
def test_every_act_gets_its_verdict_on_the_real_engines(played: tuple[str, list[Evidence], Path]) -> None:
    assert [evidence.verdict for evidence in played[1]] == [act.expected for act in ACTS]
    assert {evidence.grade for evidence in played[1]} == {"observed"}
    [workload] = {tuple(dict(evidence.figures["workload"]).items()) for evidence in played[1]}  # type: ignore[call-overload]
    assert dict(workload).keys() == {"name", "sequences", "digest"}


@pytest.mark.engine
def test_every_comparison_saw_its_planted_faults_and_its_live_canary(played: tuple[str, list[Evidence], Path]) -> None:
    for evidence in played[1]:
        assert evidence.self_test["passed"] is True
        canary = evidence.self_test["canary"]
        assert isinstance(canary, dict) and set(canary) == set(evidence.sides)
        assert all(side["changed"] > 0 and side["not_restored"] == 0 for side in canary.values())


@pytest.mark.engine
def test_transformers_differs_in_all_tokens_and_the_kernels_trainer_in_none(
    played: tuple[str, list[Evidence], Path],
) -> None:
    transformers, kernels = (e for e in played[1] if e.check == "rollout_vs_trainer")
    lines = transformers.figures["comparisons"]
    assert lines["rollout/recompute"]["different"] == lines["rollout/recompute"]["compared"] > 0
    assert kernels.figures["rows_different"] == 0
    digests = {model.weights_digest for model in kernels.models.values()}
    assert len(kernels.models) == 2 and len(digests) == 1


@pytest.mark.engine
def test_batch_invariance_is_part_of_the_side_digest_and_what_it_changed_is_on_record(
    played: tuple[str, list[Evidence], Path],
) -> None:
    plain, invariant = (e for e in played[1] if e.check == "batch")
    assert plain.sides["rollout"].digest != invariant.sides["rollout"].digest
    assert plain.sides["rollout"].stable != invariant.sides["rollout"].stable


@pytest.mark.engine
def test_phase_exercised_every_axis_that_the_side_declares(played: tuple[str, list[Evidence], Path]) -> None:
    phase = next(e for e in played[1] if e.check == "phase")
    assert set(phase.coverage.exercised) == {"decode", "chunked_prefill", "prefix_cache"}


@pytest.mark.engine
def test_the_ledger_verifies_and_the_demo_says_what_to_do_next(played: tuple[str, list[Evidence], Path]) -> None:
    output, evidence, ledger = played
    assert verify_ledger(ledger).ok
    assert all(one.id in output for one in evidence)
    assert "What to do next" in output
