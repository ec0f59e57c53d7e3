from __future__ import annotations

from typing import Any

from bitgate.store.records import SideRecord
from bitgate.tools.checks.kernels import different_kernels, kernel_reasons, said_of_equal


def side(name: str, kernels: dict[str, Any] | None) -> SideRecord:
    stable = {} if kernels is None else {"kernels": kernels}
    return SideRecord(name=name, engine="e", digest="d" * 64, stable=stable)


def test_an_operator_with_another_kernel_is_named_with_what_each_side_runs() -> None:
    rollout = side("rollout", {"linear": ["onednn[rows=16]"], "rms_norm": ["native"]})
    trainer = side("trainer", {"linear": ["onednn[rows=all]"], "rms_norm": ["native"]})
    different = different_kernels(rollout, trainer)
    assert different == {"linear": {"rollout": ["onednn[rows=16]"], "trainer": ["onednn[rows=all]"]}}
    assert [(item.code, "linear" in item.detail) for item in kernel_reasons(different)] == [("dispatch_differs", True)]


def test_an_engine_that_describes_no_kernels_says_nothing_about_them() -> None:
    assert different_kernels(side("rollout", {"linear": ["a"]}), side("trainer", None)) == {}
    assert kernel_reasons({}) == ()


def test_operators_that_only_one_side_names_are_left_out() -> None:
    assert different_kernels(side("a", {"linear": ["x"], "experts": ["y"]}), side("b", {"linear": ["x"]})) == {}


def test_a_pass_on_different_kernels_says_so_in_its_summary() -> None:
    different = different_kernels(side("rollout", {"linear": ["tiles"]}), side("trainer", {"linear": ["whole"]}))
    assert "linear" in said_of_equal(different)
    assert "same options" in said_of_equal(different)
    assert said_of_equal({}) == ""


def test_a_description_that_names_no_kernels_is_not_compared() -> None:
    assert different_kernels(side("a", {"linear": 3}), side("b", {"linear": ["x"]})) == {}
