"""check_provenance where variables are lost on the way to the ranks, through a real MCP client and real processes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from mcp_run import Followed, follow

from bitgate.store import Store
from bitgate.tools.config.digests import NUMERIC_PREFIXES

pytestmark = pytest.mark.engine
MAKER = Path(__file__).parents[3] / "tools" / "engines" / "worker" / "tiny_model.py"
TRAINER = """
import torch


def load(model_path, options):
    return None


def score(state, sequences, mode):
    made = [torch.full((len(s.tokens) - s.response_start,), -1.0, requires_grad=True) for s in sequences]
    return made if mode == "train_forward" else [values.detach() for values in made]
"""
STRIPS = '#!/bin/sh\nexec env -i PATH=/usr/bin:/bin HOME=/ {python} "$@"\n'
"""What some clusters put before Python: a container's entry point, `sudo`, a clean login shell."""
SSH = '#!/bin/sh\nfor last; do :; done\nexec env -i PATH=/usr/bin:/bin HOME=/ sh -c "$last"\n'
"""A remote shell: it gives the command an environment of its own."""
CONFIG = """
[model.tiny]
path = "tiny"
[side.stripped]
engine = "python"
python = {stripping}
module = "trainer.py"
launcher = {{ kind = "torchrun", nproc = 2 }}
env = {{ OMP_WAIT_POLICY = "PASSIVE" }}
[side.remote]
engine = "python"
python = {python}
module = "trainer.py"
launcher = {{ kind = "ssh", hosts = ["there"] }}
env = {{ OMP_WAIT_POLICY = "PASSIVE" }}
"""
SHELL = {"OMP_DYNAMIC": "true"}
"""Set where bitgate was started, and declared by no side."""
NOT_DECLARED = "not set, since the side does not declare it"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, engine_python: str) -> Path:
    root = tmp_path_factory.mktemp("strips")
    (root / "trainer.py").write_text(TRAINER, encoding="utf-8")
    stripping, python = program(root / "bin" / "python", STRIPS.format(python=engine_python)), json.dumps(engine_python)
    program(root / "bin" / "ssh", SSH)
    config = CONFIG.format(python=python, stripping=json.dumps(str(stripping)))
    (root / "bitgate.toml").write_text(config, encoding="utf-8")
    command = [engine_python, str(MAKER), str(root / "tiny"), "--layers", "1"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return root


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def observed(project: Path, side: str) -> tuple[Followed, set[tuple[str, str, int, str, str]]]:
    """The run, and its checks that fail: code, name, rank, expected, observed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(NUMERIC_PREFIXES)}
    env = {**kept, **SHELL, "PATH": f"{project / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    run = follow(project, "check_provenance", {"side": side}, env=env)
    with Store.open(project / ".bitgate" / "ledger.db") as store:
        evidence = store.get_evidence(run.end["evidence_id"])
        [ref] = [item for item in evidence.artifacts if item.name == f"{side}.provenance.json"]
        checks: list[dict[str, Any]] = json.loads(store.artifacts.path(ref.digest).read_bytes())["checks"]
    fields = ("code", "name", "rank", "expected", "observed")
    return run, {tuple(c[f] for f in fields) for c in checks if c["verdict"] == "fail"}  # type: ignore[misc]


def not_delivered(rank: int) -> tuple[str, str, int, str, str]:
    said = "true, as bitgate's own environment has it"
    return ("env_not_delivered", "env OMP_DYNAMIC", rank, said, "(unset)")


def test_a_wrapper_that_strips_the_environment_fails_on_every_rank_of_torchrun(project: Path) -> None:
    run, found = observed(project, "stripped")
    assert run.end["verdict"] == "fail", run.end
    lost = {("env_not_as_declared", "env OMP_WAIT_POLICY", rank, "PASSIVE", "(unset)") for rank in range(2)}
    # What torchrun puts where nobody did.
    own = {("env_undeclared", "env OMP_NUM_THREADS", rank, NOT_DECLARED, "1") for rank in range(2)}
    assert found == lost | own | {not_delivered(rank) for rank in range(2)}
    said = {reason["code"]: reason["detail"] for reason in run.end["reasons"]}
    assert "env OMP_WAIT_POLICY" in said["env_not_as_declared"] and "env OMP_DYNAMIC" in said["env_not_delivered"]
    # Nothing else is wrong: the two ranks are equal, and both were looked into.
    assert not {"ranks_differ", "worker_unobserved"} & set(said) and run.end["figures"]["stripped"]["ranks"] == 2
    assert 1 <= run.notes[-1] < 1.1 and any(message.startswith("stripped: ") for message in run.messages)


def test_over_ssh_what_the_side_declares_arrives_and_what_only_the_shell_has_is_named(project: Path) -> None:
    run, found = observed(project, "remote")
    assert found == {not_delivered(0)}
    assert "env_not_as_declared" not in {reason["code"] for reason in run.end["reasons"]}
    assert run.end["verdict"] == "fail", run.end
