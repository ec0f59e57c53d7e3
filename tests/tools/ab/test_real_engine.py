"""ab_benchmark on real vLLM engines: a side against itself, then against a frozen digest without and with a pass."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest

from bitgate.store import Store
from bitgate.store.records import Evidence
from bitgate.tools.ab.known import Band, BitPass, Freeze, LedgerFacts
from bitgate.tools.ab_benchmark import AbRequest
from bitgate.tools.config.digests import NUMERIC_PREFIXES
from bitgate.tools.config.project import Project
from bitgate.tools.runs.control import start_run, wait_run

pytestmark = pytest.mark.engine
MAKER = Path(__file__).parents[3] / "tools" / "engines" / "worker" / "tiny_model.py"
CONFIG = """
[model.tiny]
path = "tiny"
[side.baseline]
engine = "vllm"
python = {python}
options = {{ enforce_eager = true, max_model_len = 256 }}
env = {{ VLLM_CPU_KVCACHE_SPACE = "1" }}
[side.rollout]
engine = "vllm"
python = {python}
options = {{ enforce_eager = true, max_model_len = 256, batch_invariant = true }}
env = {{ VLLM_CPU_KVCACHE_SPACE = "1" }}
[side.rollout.expect]
backends = {{ "*" = "*" }}
[workload.short]
max_tokens = 16
[workload.short.generator]
count = 8
length = [5, 20]
vocab = 900
"""
BLOCKS = {"blocks": 3, "null_blocks": 3, "warm_up": 1, "turn_s": 0.2}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, engine_python: str) -> Project:
    root = tmp_path_factory.mktemp("speed")
    (root / "bitgate.toml").write_text(CONFIG.format(python=json.dumps(engine_python)), encoding="utf-8")
    command = [engine_python, str(MAKER), str(root / "tiny"), "--layers", "1"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return Project.load(root)


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(NUMERIC_PREFIXES)]:
        monkeypatch.delenv(name)


def measured(project: Project, known: LedgerFacts | None = None, **request: Any) -> Evidence:
    async def to_end() -> str:
        facts = known.model_dump(mode="json") if known else None
        run = await start_run(project, "ab_benchmark", AbRequest(**BLOCKS, **request), actor="tester", known=facts)
        run = await wait_run(project, run.id, 240)
        assert run.evidence_id, run.error
        return run.evidence_id

    evidence_id = anyio.run(to_end)
    with Store.open(project.ledger) as store:
        return store.get_evidence(evidence_id)


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
