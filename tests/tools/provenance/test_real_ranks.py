"""check_provenance on two ranks that torchrun starts, one process group over gloo, in the engine's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bitgate.store import Store
from bitgate.tools.config.digests import NUMERIC_PREFIXES

pytestmark = pytest.mark.engine
MAKER = Path(__file__).parents[3] / "tools" / "engines" / "worker" / "tiny_model.py"
TRAINER = """
import glob, os, sys
from pathlib import Path

import torch
import torch.distributed as dist

HERE = Path(__file__).parent


def load(model_path, options):
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    there = torch.tensor([rank + 1.0])
    dist.all_reduce(there)
    assert there.item() == 3.0, "two ranks talk"
    sys.path.append(str(HERE / (f"kernels{rank}" if options["trap"] == "other" else "kernels0")))
    import gemm
    if options["trap"] == "other" and rank == 1:
        os.environ["OMP_DYNAMIC"] = "true"
    if options["trap"] == "dark" and rank == 0 and os.fork() == 0:
        os.read(os.pipe()[0], 1)
    return rank, options["trap"], gemm


def score(state, sequences, mode):
    made = [torch.full((len(s.tokens) - s.response_start,), -1.0, requires_grad=True) for s in sequences]
    return made if mode == "train_forward" else [values.detach() for values in made]


def close(state):
    rank, trap, _ = state
    if trap == "dark" and rank == 1:
        job = Path(sys.argv[1])
        [written] = glob.glob(str(job.parent / "out" / "*1" / "provenance.json"))
        Path(written).write_text("{", encoding="utf-8")
    dist.destroy_process_group()
"""
CONFIG = """
[model.tiny]
path = "tiny"
"""
SIDE = """
[side.{trap}]
engine = "python"
python = {python}
module = "trainer.py"
launcher = {{ kind = "torchrun", nproc = 2 }}
env = {{ OMP_NUM_THREADS = "1" }}
options = {{ trap = "{trap}" }}
"""
TRAPS = ("other", "dark")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, engine_python: str) -> Path:
    root = tmp_path_factory.mktemp("ranks")
    (root / "trainer.py").write_text(TRAINER, encoding="utf-8")
    for rank, factor in enumerate((2, 3)):
        (root / f"kernels{rank}").mkdir()
        (root / f"kernels{rank}" / "gemm.py").write_text(f"def gemm(x):\n    return x * {factor}\n", encoding="utf-8")
    sides = [SIDE.format(trap=trap, python=json.dumps(engine_python)) for trap in TRAPS]
    (root / "bitgate.toml").write_text(CONFIG + "".join(sides), encoding="utf-8")
    command = [engine_python, str(MAKER), str(root / "tiny"), "--layers", "1"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return root


def observed(project: Path, trap: str) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """The answer, and all checks that do not hold, by code."""
    command = [sys.executable, "-m", "bitgate.server", "--project", str(project), "call", "check_provenance"]
    env = {name: value for name, value in os.environ.items() if not name.startswith(NUMERIC_PREFIXES)}
    done = subprocess.run([*command, f"side={trap}", "--json"], capture_output=True, text=True, timeout=240, env=env)
    assert done.stdout, done.stderr[-2000:]
    answer: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    assert "evidence_id" in answer, answer
    with Store.open(project / ".bitgate" / "ledger.db") as store:
        evidence = store.get_evidence(answer["evidence_id"])
        [ref] = [item for item in evidence.artifacts if item.name == f"{trap}.provenance.json"]
        body = json.loads(store.artifacts.path(ref.digest).read_bytes())
    by_code: dict[str, list[dict[str, Any]]] = {}
    for check in body["checks"]:
        if check["code"]:
            by_code.setdefault(check["code"], []).append(check)
    return answer, by_code


def test_a_rank_with_another_file_and_another_variable_fails_and_is_named(project: Path) -> None:
    answer, found = observed(project, "other")
    assert answer["verdict"] == "fail", answer
    assert [(check["rank"], check["expected"], check["observed"]) for check in found["ranks_differ"]] == [
        (1, "the files of rank 0", "other bytes in gemm"),
        (1, "the variables of rank 0", "OMP_DYNAMIC"),
    ]
    assert any(r["code"] == "ranks_differ" and r["detail"].startswith("rank 1: ") for r in answer["reasons"])


def test_a_process_that_nobody_looked_into_and_a_rank_that_left_no_observation_are_inconclusive(project: Path) -> None:
    answer, found = observed(project, "dark")
    assert answer["verdict"] == "inconclusive", answer
    [check] = found["worker_unobserved"]
    assert check["rank"] == 0 and check["observed"].startswith("process ")
    [check] = [c for c in found["not_observed"] if c["name"] == "rank"]
    assert (check["rank"], check["observed"]) == (1, "rank 1 left no readable observation: JSONDecodeError")
    assert {"worker_unobserved", "not_observed"} <= {reason["code"] for reason in answer["reasons"]}
