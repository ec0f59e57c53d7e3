"""Real transformers models on this CPU: scoring, layouts, the training forward, and ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.engine

Report = dict[str, Any]
Drive = Callable[..., Report]
Different = Callable[[Report, str, str], tuple[int, int]]
Pairs = list[tuple[list[int], list[int]]]

TOGETHER = [list(range(6))]
STEPS = [
    {"kind": "prefill", "name": "single", "groups": TOGETHER, "packing": "single"},
    {"kind": "prefill", "name": "padded", "groups": TOGETHER, "packing": "padded"},
    {"kind": "prefill", "name": "packed", "groups": TOGETHER, "packing": "packed"},
    {"kind": "train_forward", "name": "train", "groups": TOGETHER, "packing": "single"},
    {"kind": "perturb", "name": "canary", "groups": [[0, 1]]},
]


@pytest.fixture(scope="module")
def scored(drive: Drive, tiny: dict[str, Any], answered: Pairs) -> Report:
    return drive(engine="transformers", model=tiny["qwen3_moe"], sequences=answered, steps=STEPS)


def test_every_layout_scores_every_response_token(scored: Report) -> None:
    assert {
        name: len(scored["steps"][name]["rows"]) for name in ("single", "padded", "packed", "train")
    } == dict.fromkeys(("single", "padded", "packed", "train"), 72)


def test_the_training_forward_has_the_bits_of_scoring_and_reaches_every_parameter(
    scored: Report, different: Different
) -> None:
    assert different(scored, "single", "train") == (0, 72)
    gradients = scored["steps"]["train"]["info"]["gradients"]
    assert gradients["parameters"] > 0
    assert (gradients["unreached"], gradients["not_finite"]) == ([], [])
    computation = scored["steps"]["train"]["computation"]
    assert (computation["mode"], computation["grad"], computation["backward"]) == ("train", True, True)
    assert scored["steps"]["single"]["computation"]["mode"] == "eval"


def test_fused_experts_have_the_checkpoints_digest(scored: Report) -> None:
    assert (scored["weights"]["root"], scored["weights"]["unreadable"]) == (scored["checkpoint"], {})


def test_one_ulp_changes_logprobs_and_its_undo_restores_every_bit(scored: Report) -> None:
    canary = scored["steps"]["canary"]
    assert canary["before"] != canary["during"]
    assert canary["before"] == canary["after"]


def test_batch_invariance_makes_padded_batches_equal_to_single_sequences(
    drive: Drive, tiny: dict[str, Any], answered: Pairs, different: Different
) -> None:
    options = {"attn_implementation": "eager", "batch_invariant": True}
    report = drive(engine="transformers", model=tiny["llama"], options=options, sequences=answered, steps=STEPS[:2])
    assert different(report, "single", "padded") == (0, 72)
    assert report["describe"]["volatile"]["tiled_products"] == 15
    assert (report["weights"]["root"], report["weights"]["unreadable"]) == (report["checkpoint"], {})


def test_ranks_split_the_groups_between_them(drive: Drive, tiny: dict[str, Any], answered: Pairs) -> None:
    step = {"kind": "prefill", "name": "alone", "groups": [[i] for i in range(6)]}
    rows = [
        drive(engine="transformers", model=tiny["llama"], sequences=answered, steps=[step], place=[rank, 2])["steps"][
            "alone"
        ]["rows"]
        for rank in (0, 1)
    ]
    assert [sorted({key.split()[0] for key in part}) for part in rows] == [["0", "2", "4"], ["1", "3", "5"]]


@pytest.mark.parametrize(
    ("step", "options", "code"),
    [
        ({"kind": "generate", "groups": TOGETHER, "max_tokens": 4}, {}, "unsupported_step"),
        ({"kind": "prefill", "groups": TOGETHER}, {"attn_implementation": "no_such"}, "unsupported_option"),
    ],
)
def test_what_it_cannot_do_is_said(
    step: dict[str, Any], options: dict[str, Any], code: str, drive: Drive, tiny: dict[str, Any], answered: Pairs
) -> None:
    steps = [{"name": "asked", **step}]
    report = drive(engine="transformers", model=tiny["llama"], options=options, sequences=answered, steps=steps)
    assert report["error"]["code"] == code
