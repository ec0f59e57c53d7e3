"""0 different tokens between real vLLM and a trainer with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.engine

FAMILIES = [("qwen3", 0), ("llama", 1), ("qwen3_moe", 2)]
LAYOUTS = ["recompute", "single", "packed", "micro_batches", "padded", "shuffled"]

Cases = Callable[[str, int], Any]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("family", "seed"), FAMILIES)
def test_every_sampled_token_has_the_rollouts_bits(case: Cases, family: str, seed: int, layout: str) -> None:
    made = case(family, seed)
    sampled = made.rollout.bits("sampled")
    assert len(sampled) == sum(map(len, made.responses)) > 300
    assert made.trainer.bits(layout) == sampled


@pytest.mark.parametrize(("family", "seed"), FAMILIES)
def test_the_rollouts_prefill_has_the_same_bits_as_its_decode(case: Cases, family: str, seed: int) -> None:
    made = case(family, seed)
    assert made.rollout.bits("prefilled") == made.rollout.bits("sampled")


@pytest.mark.parametrize(("family", "seed"), FAMILIES)
def test_company_leaves_no_rows_and_changes_none(case: Cases, family: str, seed: int) -> None:
    made = case(family, seed)
    last = len(made.prompts) - 1
    expected = {key: bits for key, bits in made.rollout.bits("sampled").items() if key[0] == last}
    assert made.trainer.bits("in_company") == expected


@pytest.mark.parametrize(("family", "seed"), FAMILIES)
def test_both_sides_hold_the_same_weights(case: Cases, family: str, seed: int) -> None:
    from bitgate.tools.engines.worker.weights import checkpoint_digest

    made = case(family, seed)
    digest = made.trainer.result["weights"]["digest"]
    assert digest == made.rollout.result["weights"]["digest"] == checkpoint_digest(made.model).root()


@pytest.mark.parametrize(("family", "seed"), FAMILIES)
def test_a_train_forward_reaches_every_parameter(case: Cases, family: str, seed: int) -> None:
    made = case(family, seed)
    for name in ("single", "packed", "micro_batches", "padded", "shuffled"):
        found = made.trainer.result["steps"][name]["info"]["gradients"]
        assert found == {
            "parameters": made.trainer.result["weights"]["tensors"],
            "unreached": [],
            "not_finite": [],
            "zero": [],
        }


@pytest.mark.parametrize(("family", "seed"), FAMILIES)
def test_one_ulp_in_one_weight_changes_logprobs_and_is_undone(case: Cases, family: str, seed: int) -> None:
    seen = case(family, seed).trainer.result["steps"]["canary"]["info"]
    assert seen["changed"] > 0
    assert seen["not_restored"] == 0


@pytest.mark.parametrize(("family", "seed"), FAMILIES)
def test_both_sides_name_the_same_kernels(case: Cases, family: str, seed: int) -> None:
    made = case(family, seed)
    assert made.trainer.kernels == made.rollout.kernels


def test_the_capture_says_that_gradients_were_on(case: Cases) -> None:
    import json

    folder = case("qwen3", 0).trainer.folder / "out/rank00000/captures/packed/capture.json"
    computation = json.loads(folder.read_text(encoding="utf-8"))["computation"]
    assert (computation["mode"], computation["grad"], computation["backward"]) == ("train", True, True)
