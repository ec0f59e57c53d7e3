from __future__ import annotations

from bitgate.tools.engines.worker.kernels.identity import different_kernels


def test_equal_descriptions_have_no_difference() -> None:
    kernels = {"linear": ["onednn_mm[rows=16]"], "rms_norm": ["native"]}
    assert different_kernels(kernels, dict(reversed(kernels.items()))) == {}


def test_each_operator_that_differs_is_named_with_both_kernels() -> None:
    rollout = {"linear": ["onednn_mm[rows=all]"], "rms_norm": ["native"]}
    trainer = {"linear": ["onednn_mm[rows=16]"], "rms_norm": ["native"]}
    assert different_kernels(rollout, trainer) == {"linear": (["onednn_mm[rows=all]"], ["onednn_mm[rows=16]"])}


def test_an_operator_that_only_one_of_them_has_is_left_out() -> None:
    assert different_kernels({"experts": ["vec"]}, {}) == different_kernels({}, {"experts": ["vec"]}) == {}
