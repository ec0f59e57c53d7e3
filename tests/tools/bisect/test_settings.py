"""What kernels read besides their arguments goes with a program: two environments are two processes, and are told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bitgate.tools.bisect.setting import environment_of

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def said(script: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(script("settings.py", str(tmp_path_factory.mktemp("settings"))))
    return found


def test_a_program_carries_the_environment_that_its_kernels_read(said: dict[str, Any]) -> None:
    assert said["environments"] == [None, "COMPATIBLE"]
    assert said["differ"] > 0


def test_each_of_two_environments_gives_its_own_bits_again(said: dict[str, Any]) -> None:
    assert said["replayed"] == [True, True]
    assert said["overridden"] and said["hooked"] and said["interrupted"]


def test_the_difference_between_environments_is_named(said: dict[str, Any]) -> None:
    assert said["tried"]["the environment: MKL_CBWR"] == "ours unset, theirs COMPATIBLE"


def test_sums_are_fingerprinted_under_their_own_environment(said: dict[str, Any]) -> None:
    assert said["orders"][0] != said["orders"][1]
    assert said["class"] == "reduction_order"


def test_a_repro_of_two_environments_runs_each_side_in_its_own(said: dict[str, Any]) -> None:
    assert said["repro"] == [1]


def test_switches_of_torch_are_set_before_a_run_and_in_the_script(said: dict[str, Any]) -> None:
    assert said["switches"] == {"followed": True, "told": True}


def test_the_probe_starts_under_what_both_recorded_and_the_first_decides(tmp_path: Path) -> None:
    folders = []
    for name, environment in (("a", {"X": "1", "Y": None}), ("b", {"X": "2", "Y": "3", "Z": "4"})):
        (tmp_path / name).mkdir()
        body = {"notes": {"setting": {"environment": environment}}}
        (tmp_path / name / "program0.json").write_text(json.dumps(body), encoding="utf-8")
        folders.append(tmp_path / name)
    assert environment_of(folders) == {"X": "1", "Z": "4"}
