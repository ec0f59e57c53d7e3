"""The gradient check: what is right passes within the stated bound, every known fault fails, and is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine

LAB = Path(__file__).parent / "lab"


@pytest.fixture(scope="module")
def found(bench: Any) -> dict[str, Any]:
    report: dict[str, Any] = bench.script(LAB / "gradient_cases.py")
    return report


@pytest.mark.parametrize("name", ["right", "right_in_bfloat16", "frozen_and_declared"])
def test_right_gradients_pass(found: dict[str, Any], name: str) -> None:
    case = found["models"][name]
    assert (case["verdict"], case["wrong"]) == ("pass", [])
    assert 0 < case["worst"] < case["bound"]


@pytest.mark.parametrize(
    "name",
    [
        "log_softmax_with_identity_backward",
        "case_38_in_bfloat16",
        "attention_backward_without_scale",
        "weight_gradient_transposed",
        "norm_derivative_without_projection",
        "residual_counted_twice_in_backward",
        "residual_dropped_in_backward",
        "silu_derivative_is_sigmoid",
        "sign_flipped",
        "mean_differentiated_as_sum",
        "embedding_rows_off_by_one",
    ],
)
def test_a_wrong_backward_behind_a_right_forward_fails(found: dict[str, Any], name: str) -> None:
    case = found["models"][name]
    assert case["forward_error"] == 0.0
    assert (case["verdict"], case["codes"]) == ("fail", ["gradient_differs"])


@pytest.mark.parametrize(
    ("name", "codes", "parameters"),
    [
        ("router_detached", ["gradient_differs", "gradient_unreached"], ["router"]),
        ("gate_branch_detached", ["gradient_differs", "gradient_unreached"], ["gate0", "gate1", "gate2"]),
        ("router_gradient_silently_zero", ["gradient_differs", "gradient_zero"], ["router"]),
    ],
)
def test_a_branch_that_is_cut_off_is_named(
    found: dict[str, Any], name: str, codes: list[str], parameters: list[str]
) -> None:
    case = found["models"][name]
    assert case["forward_error"] == 0.0
    assert case["codes"] == codes
    assert set(parameters) <= set(case["wrong"])


@pytest.mark.parametrize(
    ("name", "code", "wrong"),
    [
        ("trained_parameter_frozen_by_mistake", "gradient_unreached", ["k", "norm2"]),
        ("one_nan", "gradient_not_finite", ["v"]),
        ("halved", "gradient_differs", ["o"]),
        ("wrong_shape", "gradient_differs", ["head"]),
        ("one_parameter_zero", "gradient_zero", ["router"]),
        ("unknown_parameter", "gradient_unexpected", ["ghost"]),
    ],
)
def test_only_the_parameter_at_fault_is_named(found: dict[str, Any], name: str, code: str, wrong: list[str]) -> None:
    case = found["models"][name]
    assert (case["verdict"], case["codes"], case["wrong"]) == ("fail", [code], wrong)


@pytest.mark.parametrize(
    ("name", "parameter", "words"),
    [
        ("halved", "o", "the size is 0.5 times the reference"),
        ("sign_flipped", "head", "it points the opposite way"),
        ("weight_gradient_transposed", "q", "it equals the reference transposed"),
        ("mean_differentiated_as_sum", "head", "the size is 23 times the reference"),
    ],
)
def test_the_detail_says_what_the_gradient_looks_like(
    found: dict[str, Any], name: str, parameter: str, words: str
) -> None:
    assert words in found["models"][name]["details"][parameter]


def test_without_any_signal_there_is_no_verdict(found: dict[str, Any]) -> None:
    assert found["models"]["no_signal"]["verdict"] == "inconclusive"


@pytest.mark.parametrize("name", ["log_softmax", "norm", "attention", "frozen_input"])
def test_a_right_operator_passes(found: dict[str, Any], name: str) -> None:
    assert found["operators"][name]["verdict"] == "pass"


@pytest.mark.parametrize(
    "name", ["log_softmax_identity", "norm_without_projection_2048_wide", "attention_scale", "residual"]
)
def test_a_wrong_operator_fails_in_bfloat16(found: dict[str, Any], name: str) -> None:
    case = found["operators"][name]
    assert (case["verdict"], case["codes"]) == ("fail", ["gradient_differs"])


def test_the_bound_follows_from_the_dtype(found: dict[str, Any]) -> None:
    assert found["unit_roundoff"] == {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}
    bounds = found["bounds"]
    # lambda sqrt(n) u to first order: 6 * 2^-8 = 0.0234 for one rounding, twice that for four.
    assert bounds["1"] == pytest.approx(6 * 2.0**-8, rel=0.02)
    assert bounds["4"] == pytest.approx(12 * 2.0**-8, rel=0.03)
    assert bounds["1"] < bounds["4"] < bounds["40"] < bounds["136"] < 1
