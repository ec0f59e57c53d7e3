"""Megatron-Core through the product: where it differs from vLLM and transformers and why, and a pair made equal."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from tool_runs import evidence_of

from bitgate.store.records import Evidence
from bitgate.tools.bisect_layer import BisectRequest
from bitgate.tools.config.project import Project
from bitgate.tools.engines.worker import tiny_model
from bitgate.tools.run_compare import CompareRequest

pytestmark = pytest.mark.engine

TWIN = Path(__file__).parent / "megatron_twin.py"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, engine_python: str, tiny: Path, checkpoints: Path) -> Project:
    root = tmp_path_factory.mktemp("project")
    sparse = root / "sparse"
    writer = Path(tiny_model.__file__)
    command = [engine_python, str(writer), str(sparse), "--family", "qwen3_moe", "--layers", "2", "--experts", "4"]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    twin = f'engine = "python"\npython = "{engine_python}"\nmodule = "{TWIN}"\n'
    megatron = f'engine = "megatron"\npython = "{engine_python}"\n'
    text = f"""
[model.tiny]
path = "{tiny}"
[model.sparse]
path = "{sparse}"
[side.rollout]
model = "tiny"
engine = "vllm"
python = "{engine_python}"
env = {{ VLLM_CPU_KVCACHE_SPACE = "1" }}
options = {{ enforce_eager = true, max_model_len = 128 }}
[side.transformers]
model = "tiny"
engine = "transformers"
python = "{engine_python}"
[side.megatron]
model = "tiny"
{megatron}
[side.packing]
model = "tiny"
{megatron}axes = ["packing"]
[side.norms]
model = "tiny"
{twin}options = {{ norm = true, attention = false }}
[side.equal]
model = "tiny"
{twin}options = {{ norm = true, attention = true }}
[side.experts]
model = "sparse"
{twin}options = {{ norm = true, attention = true, experts = true }}
[workload.short]
max_tokens = 3
[workload.short.generator]
seed = 1
count = 3
length = [5, 30]
vocab = 200
"""
    (root / "bitgate.toml").write_text(text, encoding="utf-8")
    return Project.load(root)


def bisected(project: Project, side: str, sequences: int = 3) -> tuple[Evidence, Any]:
    request = BisectRequest(check="rollout_vs_trainer", side=side, trainer="megatron", sequences=sequences)
    found = evidence_of(project, "bisect_layer", request)
    return found, found.figures.get("first_cause")


def test_transformers_rounds_its_norm_before_the_weight_and_megatron_after_it(project: Project) -> None:
    found, cause = bisected(project, "transformers")
    assert (found.verdict, found.grade) == ("fail", "observed"), found.summary
    assert (cause["point"], cause["class"]) == ("layers.0.attn_norm", "precision"), cause
    assert found.figures["repro"]["exit_codes"] == [1, 1, 1]  # type: ignore[index, call-overload]


def test_with_the_norms_made_equal_attention_is_the_next_cause(project: Project) -> None:
    found, cause = bisected(project, "norms", sequences=1)
    assert (found.verdict, cause["point"]) == ("fail", "layers.0.attn_out"), found.summary
    assert cause["points_before_equal"] > 8


def test_with_norms_and_attention_made_equal_the_pair_is_clean(project: Project) -> None:
    found, _ = bisected(project, "equal", sequences=1)
    assert (found.verdict, found.reasons) == ("pass", ()), found.summary


def test_with_experts_weighted_before_their_last_product_a_model_of_experts_is_clean(project: Project) -> None:
    request = BisectRequest(check="rollout_vs_trainer", side="experts", trainer="megatron", model="sparse", sequences=1)
    found = evidence_of(project, "bisect_layer", request)
    assert (found.verdict, found.reasons) == ("pass", ()), found.summary
    (pair,) = found.figures["pairs"].values()  # type: ignore[union-attr]
    assert pair["mandatory_missing"] == 0 and pair["status"]["absorbed"] == 0  # type: ignore[index, call-overload]


def test_vllm_and_megatron_are_told_apart_with_a_repro(project: Project) -> None:
    found, cause = bisected(project, "rollout")
    assert found.verdict == "fail", found.summary
    assert cause["points_before_equal"] > 0
    assert found.figures["repro"]["exit_codes"] == [1, 1, 1]  # type: ignore[index, call-overload]


def test_the_rollout_and_megatron_differ_by_real_figures_on_the_same_weights(project: Project) -> None:
    request = CompareRequest(check="rollout_vs_trainer", side="rollout", trainer="megatron")
    found = evidence_of(project, "run_compare", request)
    lines: Any = found.figures["comparisons"]
    assert found.verdict == "fail", found.summary
    assert lines["rollout/recompute"]["different"] > 0
    assert lines["recompute/first_train_forward"]["different"] == 0
    assert len({model.weights_digest for model in found.models.values()}) == 1
    assert found.self_test["passed"] is True


def test_megatron_repeats_itself_to_the_last_bit(project: Project) -> None:
    found = evidence_of(project, "run_compare", CompareRequest(check="repeat", side="megatron"))
    assert (found.verdict, found.figures["rows_different"]) == ("pass", 0), found.summary


def test_its_padded_layouts_are_compared_with_single_sequences(project: Project) -> None:
    found = evidence_of(project, "run_compare", CompareRequest(check="layout", side="megatron"))
    names = set(found.figures["comparisons"])  # type: ignore[arg-type]
    assert any("padded" in name for name in names) and not any("packed" in name for name in names)
    assert found.verdict in ("pass", "fail"), found.summary


def test_a_side_that_packs_with_local_layers_is_inconclusive_with_the_reason(project: Project) -> None:
    found = evidence_of(project, "run_compare", CompareRequest(check="layout", side="packing"))
    assert found.verdict == "inconclusive"
    assert "refuse packed sequences (thd)" in found.reasons[0].detail
