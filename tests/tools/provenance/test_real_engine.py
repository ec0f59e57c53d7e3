"""check_provenance and ab_benchmark on a real vLLM, through the command line, on a baseline that was tampered with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from vllm_project import made_project, vllm_side, workload

from bitgate.tools.config.digests import NUMERIC_PREFIXES

pytestmark = pytest.mark.engine
PATCH = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "vllm.v1.core.sched.utils":
            return None
        sys.meta_path.remove(self)
        import importlib.util, batch_invariant_ops
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module
        def exec_module(module):
            execute(module)
            module.check_stop = batch_invariant_ops.wrapped(module.check_stop)
        spec.loader.exec_module = exec_module
        return spec
sys.meta_path.insert(0, Finder())
"""
LIBRARY = """def wrapped(function):
    def slower(*args, **kwargs):
        return function(*args, **kwargs)
    return slower
"""
CLEAN = """backends = { "attention.backends" = "CPU_ATTN" }
not_loaded = ["batch_invariant_ops"]"""
TAMPERED = 'not_loaded = ["batch_invariant_ops"]'


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, engine_python: str) -> Path:
    """Side `baseline` starts Python with a folder that patches vLLM and brings a batch-invariant library."""
    root = tmp_path_factory.mktemp("project")
    tampered = root / "tampered"
    tampered.mkdir()
    (tampered / "sitecustomize.py").write_text(PATCH, encoding="utf-8")
    (tampered / "batch_invariant_ops.py").write_text(LIBRARY, encoding="utf-8")
    baseline = vllm_side(
        "baseline", engine_python, owner="consistency", env={"PYTHONPATH": str(tampered)}, expect=TAMPERED
    )
    clean = vllm_side("clean", engine_python, expect=CLEAN)
    made_project(root, engine_python, clean, baseline, workload(4, 4, (5, 20)), layers=2)
    return root


def call(project: Path, *words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "bitgate.server", "--project", str(project), "call", *words, "--json"]
    # What the machine itself sets (OPENBLAS_CORETYPE, say) would rightly be found undeclared.
    env = {name: value for name, value in os.environ.items() if not name.startswith(NUMERIC_PREFIXES)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=540, env=env)
    assert done.stdout, done.stderr[-2000:]
    answer: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    return answer


def test_the_clean_side_passes_and_the_tampered_one_fails_with_who_did_it(project: Path) -> None:
    answer = call(project, "check_provenance", "side=clean", "other=baseline")
    assert answer["verdict"] == "fail", answer
    seen = {reason["code"]: reason["detail"] for reason in answer["reasons"]}
    # The library is also newer than whatever the machine's compile cache holds.
    assert set(seen) - {"jit_cache_older"} == {"code_replaced", "expectation_unmet"}, seen
    assert all(detail.startswith("side baseline:") for detail in seen.values())
    assert "vllm.v1.core.sched.utils.check_stop" in seen["code_replaced"]
    assert "batch_invariant_ops.py:2" in seen["code_replaced"]
    assert answer["grade"] == "observed"
    # What a machine does not let be observed is inconclusive there; nothing on the clean side is found wrong.
    assert "pass" in answer["figures"]["clean"]["checks"] and "fail" not in answer["figures"]["clean"]["checks"]


def test_a_contaminated_baseline_voids_the_measurement_which_is_recorded_all_the_same(project: Path) -> None:
    answer = call(
        project, "ab_benchmark", "side=clean", "other=baseline", "blocks=3", "null_blocks=2", "warm_up=1", "turn_s=0"
    )
    codes = {reason["code"]: reason["detail"] for reason in answer["reasons"]}
    assert answer["verdict"] == "invalid", answer
    assert "batch_invariant_ops" in codes["baseline_contaminated"]
    assert not {"token_counts_differ", "order_confounded", "clock_jumped", "requests_failed"} & set(codes)
    figures = answer["figures"]
    assert (figures["pairs"], figures["method"]) == (6, "t_on_blocks")
    assert figures["ratio_low"] < figures["ratio"] < figures["ratio_high"]
    assert figures["clean"]["tokens"] == 3 * 2 * 4 * 4
    assert {artifact["name"] for artifact in answer["artifacts"]} == {"ab.png", "turns.jsonl", "samples.safetensors"}
