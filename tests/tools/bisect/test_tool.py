"""The tool as a caller has it, on real engines: where, which class, a proved repro, and a clean pair reported clean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tool_runs import evidence_of

from bitgate.store.records import Evidence
from bitgate.tools.bisect_layer import BisectRequest, plan
from bitgate.tools.config.project import Project
from bitgate.tools.errors import RequestError
from bitgate.tools.registry import TOOLS

OWN = Path(__file__).parent / "own_trainer.py"
KILLING = Path(__file__).parent / "killing"
WORKLOAD = """
[workload.short]
max_tokens = 3
[workload.short.generator]
seed = 1
count = 3
length = [5, 30]
vocab = 200
"""


def project_of(root: Path, python: str, model: Path, killed_at: str = "") -> Project:
    """killed_at: `module:function` of the probes at which those of `own` die."""
    dying = f'env = {{ PYTHONPATH = "{KILLING}", KILLED_AT = "{killed_at}" }}\n' if killed_at else ""
    vllm = f'engine = "vllm"\npython = "{python}"\nenv = {{ VLLM_CPU_KVCACHE_SPACE = "1" }}\n'
    own = f'engine = "python"\npython = "{python}"\nmodule = "{OWN}"\n'
    text = (
        f'[model.tiny]\npath = "{model}"\n'
        f"[side.own]\n{own}{dying}options = {{ late = false }}\n"
        f"[side.late]\n{own}options = {{ late = true }}\n"
        f"[side.rollout]\n{vllm}options = {{ enforce_eager = true, max_model_len = 128, batch_invariant = true }}\n"
        f'[side.trainer]\nengine = "vllm_kernels"\npython = "{python}"\n'
        "options = { enforce_eager = true, max_model_len = 128, batch_invariant = true }\n"
        f'[side.transformers]\nengine = "transformers"\npython = "{python}"\n{WORKLOAD}'
    )
    (root / "bitgate.toml").write_text(text, encoding="utf-8")
    return Project.load(root)


@pytest.fixture
def project(tmp_path: Path, engine_python: str, tiny: Path) -> Project:
    return project_of(tmp_path, engine_python, tiny)


def bisected(project: Project, **request: Any) -> Evidence:
    return evidence_of(project, "bisect_layer", BisectRequest(**request))


def test_the_tool_is_registered_under_its_name() -> None:
    assert TOOLS.find("bisect_layer").request is BisectRequest


@pytest.mark.parametrize(
    "given", [{}, {"check": "layers"}, {"check": "batch", "sequences": 0}, {"check": "batch", "x": 1}]
)
def test_requests_that_cannot_be_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        BisectRequest(**given)


def test_a_side_against_itself_is_refused_before_anything_runs(tmp_path: Path) -> None:
    project = project_of(tmp_path, "/usr/bin/python3", tmp_path)
    with pytest.raises(RequestError, match="another side"):
        plan(project, BisectRequest(check="rollout_vs_trainer", side="own", trainer="own"))


@pytest.mark.engine
def test_a_norm_that_casts_late_is_named_in_two_trainers_of_the_users_own(project: Project) -> None:
    found = bisected(project, check="rollout_vs_trainer", side="own", trainer="late")
    cause: Any = found.figures["first_cause"]
    assert (found.verdict, cause["point"], cause["class"]) == ("fail", "layers.1.mlp_norm", "precision"), found.summary
    assert cause["points_before_equal"] > 10
    assert found.figures["repro"]["exit_codes"] == [1, 1, 1]  # type: ignore[index, call-overload]
    assert found.grade == "attested"
    assert {a.name for a in found.artifacts} >= {"bisect.json", "heatmap.png", "repro.py"}
    assert len(json.dumps(found.figures)) < 10_000


@pytest.mark.engine
def test_vllm_and_the_trainer_of_its_kernels_are_clean_and_transformers_is_not(project: Project) -> None:
    clean = bisected(project, check="rollout_vs_trainer", side="rollout", trainer="trainer")
    assert (clean.verdict, clean.reasons) == ("pass", ()), clean.summary
    assert clean.figures["bytes_recorded"] == 0
    other = bisected(project, check="rollout_vs_trainer", side="rollout", trainer="transformers")
    cause: Any = other.figures["first_cause"]
    assert other.verdict == "fail"
    assert cause["class"] in ("precision", "reduction_order", "unknown"), cause
    assert other.figures["repro"]["exit_codes"] == [1, 1, 1]  # type: ignore[index, call-overload]


@pytest.mark.engine
def test_an_experiment_that_kills_its_process_leaves_the_cause_unknown_and_nothing_lost(
    tmp_path: Path, engine_python: str, tiny: Path
) -> None:
    project = project_of(tmp_path, engine_python, tiny, "experiments.casts:precision")
    found = bisected(project, check="rollout_vs_trainer", side="own", trainer="late")
    figures: Any = found.figures
    assert (found.verdict, [r.code for r in found.reasons]) == ("fail", ["points_missing", "cause_unknown"])
    assert "the experiment precision" in found.summary and "SIGABRT" in found.summary
    assert figures["first_cause"]["point"] == "layers.1.mlp_norm"
    assert {"nondeterminism", "uninitialised_read", "input_layout"} <= set(figures["excluded"])
    assert figures["experiments"][-1]["result"].startswith("not finished: engine_killed")
    assert figures["repro"]["exit_codes"] == [1, 1, 1]


@pytest.mark.engine
def test_a_repro_whose_cutting_kills_its_process_is_left_uncut_and_the_class_stays(
    tmp_path: Path, engine_python: str, tiny: Path
) -> None:
    project = project_of(tmp_path, engine_python, tiny, "smaller:smaller")
    found = bisected(project, check="rollout_vs_trainer", side="own", trainer="late")
    figures: Any = found.figures
    assert (found.verdict, [r.code for r in found.reasons]) == ("fail", ["points_missing", "first_cause_found"])
    assert figures["first_cause"]["class"] == "precision"
    assert figures["experiments"][-1]["experiment"] == "making the repro smaller"
    assert (figures["repro"]["exit_codes"], figures["repro"]["cut"]) == ([1, 1, 1], [])
