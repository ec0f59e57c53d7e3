"""Today, as the gates see it: the configuration joined with the last observation, and files that changed since."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from bitgate.gates.ledger import LedgerView
from bitgate.server.gate_today import FINGERPRINT, configured_record, today
from bitgate.store import Store
from bitgate.store.records import Finding, ModelRecord, RegisteredModel, SideRecord
from bitgate.tools.config.project import Project

CONFIG = """
[model.tiny]
path = "tiny"
[side.rollout]
engine = "python"
python = "python3"
module = "mine.py"
[side.rollout.options]
batch_invariant = true
[policy]
updates_per_step = 1
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "bitgate.toml").write_text(CONFIG, encoding="utf-8")
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text("{}", encoding="utf-8")
    old = 1_700_000_000
    os.utime(tmp_path / "tiny" / "config.json", (old, old))
    return tmp_path


@pytest.fixture
def store(root: Path):
    with Store.open(root / ".bitgate" / "ledger.db") as opened:
        yield opened


def observed(root: Path, **stable: str) -> SideRecord:
    side = Project.load(root).side("rollout")
    record = configured_record(side)
    return record.model_copy(update={"stable": stable, "digest": side.digest(stable, record.axes)})


def record(
    store, root, tool="run_compare", check="batch", grade="observed", files=None, models=None, side=None, host=None
):
    artifacts = ()
    if files is not None:
        body = {"host": host or socket.gethostname(), "files": files}
        data = json.dumps(body, allow_nan=False).encode()
        artifacts = (store.artifacts.put_bytes(data, FINGERPRINT, "application/json"),)
    run = store.start_run(tool, {}, "consistency:x")
    sides = {"rollout": side or observed(root, engine="1.0")}
    finding = Finding(
        verdict="pass",
        summary="s",
        next="n",
        grade=grade,
        check=check,
        sides=sides,
        models=models or {},
        artifacts=artifacts,
    )
    return store.finish_run(run.id, "finished", finding=finding)


def rollout(store, root):
    return today(Project.load(root), store).sides["rollout"]


def stat_of(path: Path) -> list[object]:
    found = path.stat()
    return [str(path), found.st_size, found.st_mtime_ns]


def test_a_side_that_nothing_observed_is_not_known(store, root):
    side = rollout(store, root)
    assert side.record is None and side.configured.options == {"batch_invariant": True}


def test_a_side_is_what_its_newest_observation_saw_under_todays_configuration(store, root):
    record(store, root)
    record(store, root, side=observed(root, engine="1.1"))
    assert rollout(store, root).record.stable == {"engine": "1.1"}
    assert rollout(store, root).record.digest == observed(root, engine="1.1").digest


def test_an_observation_under_another_configuration_says_nothing_about_today(store, root):
    record(store, root)
    (root / "bitgate.toml").write_text(CONFIG.replace("= true", "= false"), encoding="utf-8")
    assert rollout(store, root).record is None


def test_what_somebody_attested_or_tried_is_no_observation(store, root):
    record(store, root, grade="attested")
    record(store, root, side=observed(root, engine="1.0").model_copy(update={"configured": False}))
    assert rollout(store, root).record is None


def test_a_file_that_provenance_named_and_that_changed_makes_the_side_unknown_by_name(store, root):
    module = root / "layer.py"
    module.write_text("x = 1\n", encoding="utf-8")
    record(store, root, tool="check_provenance", check=None, files=[stat_of(module)])
    assert rollout(store, root).record is not None
    module.write_text("x = 22\n", encoding="utf-8")
    assert f"{module} changed since its provenance" in rollout(store, root).unknown
    record(store, root, tool="check_provenance", check=None, files=[stat_of(module)])
    assert rollout(store, root).record is not None


def test_a_file_that_is_gone_has_changed(store, root):
    record(
        store,
        root,
        tool="check_provenance",
        check=None,
        files=[[str(root / "gone.py"), 1, 1], [str(root / "too.py"), 1, 1]],
    )
    assert "gone.py and 1 more files changed" in rollout(store, root).unknown


def test_files_of_another_host_are_not_looked_for_here(store, root):
    record(store, root, tool="check_provenance", check=None, files=[["/nowhere/x.py", 1, 1]], host="node-b")
    assert rollout(store, root).record is not None


def model(name="tiny", weights="a", slice_of=None):
    return ModelRecord(name=name, architecture_digest="0" * 64, weights_digest=weights * 64, slice_of=slice_of)


def test_the_full_model_is_what_the_newest_run_read(store, root):
    assert "no run has read its weights yet" in today(Project.load(root), store).models["full"].unknown
    record(store, root, models={"tiny": model()})
    assert today(Project.load(root), store).models["full"].record == model()


def test_weights_written_after_the_last_run_are_not_known(store, root):
    record(store, root, models={"tiny": model()})
    (root / "tiny" / "model.safetensors").write_bytes(b"new")
    later = 4_000_000_000
    os.utime(root / "tiny" / "model.safetensors", (later, later))
    assert "model.safetensors was written after" in today(Project.load(root), store).models["full"].unknown


def test_the_slice_is_the_newest_one_that_was_registered(store, root):
    for weights in "bc":
        body = model("tiny-slice", weights, "tiny").model_dump()
        store.register_model(RegisteredModel(**body, path=str(root / "tiny")), "consistency:x")
    assert today(Project.load(root), store).models["slice"].record.weights_digest == "c" * 64


def test_a_slice_whose_folder_is_gone_is_not_known(store, root):
    body = model("tiny-slice", "b", "tiny").model_dump()
    store.register_model(RegisteredModel(**body, path=str(root / "gone")), "consistency:x")
    assert "no longer there" in today(Project.load(root), store).models["slice"].unknown


def test_policy_that_is_not_written_down_is_not_declared(store, root):
    policy = today(Project.load(root), store).policy
    assert (policy.updates_per_step, policy.corrections, policy.cross_rank_reduction) == (1, None, None)


def test_the_configuration_alone_changes_the_board(store, root):
    """C0 as a whole, from the real configuration: declaring the policy is what it lacked."""
    board = LedgerView(store).board(today(Project.load(root), store))
    assert "policy_declared" in {item.key for item in board["C0"].missing}
    declared = CONFIG + 'corrections = []\ncross_rank_reduction = "none"\n'
    (root / "bitgate.toml").write_text(declared, encoding="utf-8")
    board = LedgerView(store).board(today(Project.load(root), store))
    assert "policy_declared" not in {item.key for item in board["C0"].missing}
