"""run_compare on captures: request, supervisor, evidence in the ledger."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitgate.store import Store, verify_ledger
from bitgate.tools.config.project import Project
from bitgate.tools.errors import RequestError

LEGS = ("rollout", "recompute", "first_train_forward")
Write = Callable[..., str]
Compare = Callable[..., Any]


WITH_A_TRAINER = """
[model.tiny]
path = "model"
[side.rollout]
engine = "capture"
capture = "rollout"
[side.trainer]
engine = "python"
python = "{python}"
module = "trainer.py"
[workload.short]
max_tokens = 8
[workload.short.generator]
count = 8
length = [5, 5]
vocab = 97
[policy]
disk_reserve = 0
"""


def one_ulp(logprob: np.ndarray, row: int) -> np.ndarray:
    changed = logprob.copy()
    changed[row] = np.nextafter(changed[row], np.float32(-np.inf))
    return changed


def test_three_equal_legs_pass_as_attested_evidence(
    write: Write, compare: Compare, logprob: np.ndarray, project: Project
) -> None:
    run, evidence = compare(check="rollout_vs_trainer", captures={leg: write(leg, logprob) for leg in LEGS})
    assert (run.state, evidence.verdict, evidence.grade) == ("finished", "pass", "attested")
    assert evidence.figures["rows_compared"] == 3 * 64
    assert evidence.self_test["passed"] is True
    assert verify_ledger(project.ledger).ok


def test_one_ulp_in_one_token_fails_and_leaves_rows_histogram_and_picture(
    write: Write, compare: Compare, logprob: np.ndarray, project: Project
) -> None:
    captures = {leg: write(leg, one_ulp(logprob, 13) if leg == "first_train_forward" else logprob) for leg in LEGS}
    _, evidence = compare(check="rollout_vs_trainer", captures=captures)
    assert evidence.verdict == "fail"
    assert evidence.figures["worst"]["first"]["sequence"] == 1
    assert evidence.figures["worst"]["statistics"]["ulp_max"] == 1
    names = {item.name for item in evidence.artifacts}
    assert names == {"comparison.json", "different_rows.csv", "mismatches.png", "ulp_histogram.json"}
    with Store.open(project.ledger) as store:
        picture = next(item for item in evidence.artifacts if item.name == "mismatches.png")
        assert store.artifacts.path(picture.digest).read_bytes().startswith(b"\x89PNG")


def test_a_missing_leg_is_inconclusive(write: Write, compare: Compare, logprob: np.ndarray) -> None:
    captures = {leg: write(leg, logprob) for leg in LEGS[:2]}
    _, evidence = compare(check="rollout_vs_trainer", captures=captures)
    assert (evidence.verdict, [item.code for item in evidence.reasons]) == ("inconclusive", ["leg_missing"])


def test_two_captures_of_different_weights_are_invalid(write: Write, compare: Compare, logprob: np.ndarray) -> None:
    captures = {"reference": write("a", logprob), "other": write("b", logprob, weights="cd" * 32)}
    _, evidence = compare(check="repeat", captures=captures)
    assert evidence.verdict == "invalid"
    assert "weights_differ" in {item.code for item in evidence.reasons}


def test_a_truncated_capture_is_invalid_and_named(
    write: Write, compare: Compare, logprob: np.ndarray, project: Project
) -> None:
    captures = {"reference": write("a", logprob), "other": write("b", logprob)}
    rows = project.root / "b" / "rows.safetensors"
    rows.write_bytes(rows.read_bytes()[:-10])
    _, evidence = compare(check="batch", captures=captures)
    assert evidence.verdict == "invalid"
    assert [item.code for item in evidence.reasons if item.code.startswith("capture")] == ["capture_truncated"]


@pytest.mark.parametrize(
    ("file", "cut", "code"), [("rows.safetensors", -10, "capture_truncated"), ("capture.json", 40, "capture_json")]
)
def test_a_broken_rollout_capture_for_a_live_trainer_is_invalid(
    write: Write, compare_in: Compare, logprob: np.ndarray, project: Project, file: str, cut: int, code: str
) -> None:
    broken = project.root / write("rollout", logprob) / file
    broken.write_bytes(broken.read_bytes()[:cut])
    (project.root / "bitgate.toml").write_text(WITH_A_TRAINER.format(python=sys.executable), encoding="utf-8")
    (project.root / "model").mkdir()
    (project.root / "trainer.py").touch()
    _, evidence = compare_in(Project.load(project.root), check="rollout_vs_trainer")
    assert (evidence.verdict, [item.code for item in evidence.reasons]) == ("invalid", [code])


def test_views_that_leave_rows_out_are_inconclusive(write: Write, compare: Compare, logprob: np.ndarray) -> None:
    captures = {"reference": write("a", logprob), "other": write("b", logprob[:32], parallel={"tensor_parallel": 2})}
    _, evidence = compare(check="layout", captures=captures)
    assert evidence.verdict == "inconclusive"
    assert [item.code for item in evidence.reasons] == ["partial_coverage"]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"captures": {"rolout": "a"}}, "Did you mean 'rollout'"),
        ({"captures": {"rollout": "../outside"}}, "captures.rollout"),
        ({"captures": {"rollout": "a"}, "options": {"rollout": {"seed": 1}}}, "no options together with captures"),
        ({"check": "batch", "captures": {"a": "a", "b": "b"}}, "'reference' and at least one more"),
        ({"batch_sizes": [1]}, "only with check=batch"),
        ({"side": "rollout"}, "[side.NAME]"),
        ({"side": "rollout", "trainer": "rollout"}, "a side other than `side`"),
        ({"captures": {"rollout": "nowhere"}}, "a folder that holds capture.json"),
        ({"captures": {"rollout": "a" * 5000}}, "cannot be resolved"),
    ],
)
def test_a_request_that_cannot_run_is_refused_before_any_row_is_written(
    compare: Compare, project: Project, request_: dict[str, Any], words: str
) -> None:
    with pytest.raises(RequestError) as refused:
        compare(**{"check": "rollout_vs_trainer", **request_})
    assert words in str(refused.value)
    assert not Path(project.ledger).exists()
