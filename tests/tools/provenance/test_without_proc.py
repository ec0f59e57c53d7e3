"""check_provenance on a rank that has no /proc, for real: a mount namespace of its own, in which /proc is empty."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from vllm_project import MAKER, MODEL

from bitgate.store import Store
from bitgate.tools.config.digests import NUMERIC_PREFIXES

TRAINER = """
import os

import torch


def load(model_path, options):
    assert os.listdir("/proc") == []
    return None


def score(state, sequences, mode):
    made = [torch.full((len(s.tokens) - s.response_start,), -1.0, requires_grad=True) for s in sequences]
    return made if mode == "train_forward" else [values.detach() for values in made]
"""
HIDES = 'mount -t tmpfs none /proc && exec "$0" "$@"'
SIDE = """
[side.blind]
engine = "python"
python = {python}
module = "trainer.py"
env = {{ OMP_WAIT_POLICY = "PASSIVE" }}
[side.blind.expect]
versions = {{ torch = {version} }}
not_loaded = ["*batch_invariant*"]
"""
BLIND = {"environment", "loaded libraries", "expect.loaded", "files", "caches", "workers"}
"""What nobody can know of a process without /proc."""


@pytest.fixture(scope="module")
def hiding() -> list[str]:
    """A command that runs another one without /proc; skips where the kernel lets nobody make a mount namespace."""
    unshare = shutil.which("unshare")
    for words in (["--mount"], ["--map-root-user", "--mount"]) if unshare else ():
        command = [str(unshare), *words, "sh", "-c", HIDES]
        done = subprocess.run([*command, "ls", "/proc"], capture_output=True, text=True, timeout=30)
        if (done.returncode, done.stdout) == (0, ""):
            return command
    pytest.skip("not shown here: this user may make no mount namespace, so that /proc cannot be hidden from a process")


def version_of_torch(python: str) -> str:
    done = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True)
    return done.stdout.strip()


@pytest.mark.engine
def test_without_proc_every_fact_that_needs_it_is_inconclusive_with_its_reason_and_the_rest_is_observed(
    tmp_path: Path, engine_python: str, hiding: list[str]
) -> None:
    wrapper = tmp_path / "python"
    quoted = " ".join(f"'{word}'" for word in (*hiding, engine_python))
    wrapper.write_text(f'#!/bin/sh\nexec {quoted} "$@"\n', encoding="utf-8")
    wrapper.chmod(0o755)
    (tmp_path / "trainer.py").write_text(TRAINER, encoding="utf-8")
    side = SIDE.format(python=json.dumps(str(wrapper)), version=json.dumps(version_of_torch(engine_python)))
    (tmp_path / "bitgate.toml").write_text(MODEL + side, encoding="utf-8")
    command = [engine_python, str(MAKER), str(tmp_path / "tiny"), "--layers", "1"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)

    answer, checks = observed(tmp_path)
    assert answer["verdict"] == "inconclusive", answer
    unknown = {check["name"]: check["observed"] for check in checks if check["code"] == "not_observed"}
    assert set(unknown) == BLIND, unknown
    assert all("/proc" in said for said in unknown.values()), unknown
    # What needs no /proc is observed all the same, and nothing is called wrong for want of it.
    assert not [check for check in checks if check["verdict"] == "fail"], checks
    passed = {check["name"] for check in checks if not check["code"]}
    assert {"version of torch", "files of wheels", "functions"} <= passed


def observed(project: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    command = [sys.executable, "-m", "bitgate.server", "--project", str(project), "call", "check_provenance"]
    env = {name: value for name, value in os.environ.items() if not name.startswith(NUMERIC_PREFIXES)}
    done = subprocess.run([*command, "side=blind", "--json"], capture_output=True, text=True, timeout=240, env=env)
    assert done.stdout, done.stderr[-2000:]
    answer: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    assert "evidence_id" in answer, answer
    with Store.open(project / ".bitgate" / "ledger.db") as store:
        evidence = store.get_evidence(answer["evidence_id"])
        [ref] = [item for item in evidence.artifacts if item.name == "blind.provenance.json"]
        checks: list[dict[str, Any]] = json.loads(store.artifacts.path(ref.digest).read_bytes())["checks"]
    return answer, checks
