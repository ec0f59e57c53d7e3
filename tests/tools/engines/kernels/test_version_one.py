"""The weights after an optimiser step, as version 1, through run_compare itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine

CONFIG = """
[model.first]
path = {first}
[model.stepped]
path = {stepped}
weight_version = 1

[side.rollout]
engine = "vllm"
python = {python}
options = {{ enforce_eager = true, max_model_len = 512, batch_invariant = true }}

[side.trainer]
engine = "vllm_kernels"
python = {python}
options = {{ enforce_eager = true, max_model_len = 512, batch_invariant = true }}

[workload.edges]
max_tokens = 24
generator = {{ seed = 5, count = 8, length = [100, 140], vocab = 1024, shared_prefix = 60, prefix_groups = 2 }}
"""


@pytest.fixture(scope="module")
def project(bench: Any, lab: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert lab["step"]["changed"] == lab["step"]["parameters"]
    root = tmp_path_factory.mktemp("version_one")
    places = {"first": bench.folder / "lab/qwen3", "stepped": bench.folder / "lab/stepped", "python": bench.python}
    text = CONFIG.format(**{name: json.dumps(str(place)) for name, place in places.items()})
    (root / "bitgate.toml").write_text(text, encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def evidence(project: Path) -> Any:
    from bitgate.store.store import Store

    command = [sys.executable, "-m", "bitgate.server", "--project", str(project), "call", "run_compare"]
    words = ["check=rollout_vs_trainer", "model=stepped", "--json"]
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    with Store.open(project / ".bitgate/ledger.db") as store:
        return store.get_evidence(json.loads(done.stdout)["evidence_id"])


def test_the_stepped_weights_pass_in_three_legs(evidence: Any) -> None:
    assert (evidence.verdict, evidence.grade) == ("pass", "observed")
    compared = evidence.figures["comparisons"]
    assert len(compared) == 3
    assert {(pair["compared"], pair["different"]) for pair in compared.values()} == {(8 * 24, 0)}


def test_both_sides_are_recorded_as_version_1_of_other_weights(evidence: Any, bench: Any) -> None:
    from bitgate.tools.engines.worker.weights import checkpoint_digest

    models, first = evidence.models.values(), checkpoint_digest(bench.folder / "lab/qwen3").root()
    assert [model.weight_version for model in models] == [1, 1]
    assert len({model.weights_digest for model in models} | {first}) == 2


def test_every_row_carries_the_version(project: Path) -> None:
    from safetensors.numpy import load_file

    found = [
        load_file(rows)["weight_version"]
        for rows in project.glob(".bitgate/runs/*/jobs/*/out/*/captures/*/*.safetensors")
    ]
    assert len(found) >= 3
    assert {int(version) for column in found for version in column} == {1}
