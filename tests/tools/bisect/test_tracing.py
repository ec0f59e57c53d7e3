"""Regions that cannot be kept, and regions of another machine, end in words and never in a crash or a wrong answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def said(script: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(script("tracing.py", str(tmp_path_factory.mktemp("repro"))))
    return found


def test_an_argument_that_cannot_be_kept_is_named_and_the_forward_goes_on(said: dict[str, Any]) -> None:
    assert said["ran"]
    assert "no copy of this" in said["refused"][0]


def test_undefined_tensors_in_a_list_are_given_back_as_empty_ones(said: dict[str, Any]) -> None:
    assert said["filled"] == [True, True]


def test_a_program_without_the_batch_invariant_mode_is_not_run_in_it(said: dict[str, Any]) -> None:
    assert "another program needs" in said["conflict"]


def test_a_repro_from_a_gpu_cannot_run_where_there_is_none(said: dict[str, Any]) -> None:
    assert (said["gpu"]["exit"], said["gpu"]["proved"]) == (2, False)
    assert "there is none" in said["gpu"]["said"]


def test_operators_are_registered_by_the_module_that_brings_them(said: dict[str, Any]) -> None:
    assert said["registering"] == {
        "_C_cache_ops": ["vllm._custom_ops"],
        "_vllm_fa3_C": ["vllm.vllm_flash_attn"],
        "aten": [],
    }
