"""Megatron-Core's GPTModel on this CPU: its weights are the checkpoint's, its maths the model's, its layouts real."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
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
    {"kind": "prefill", "name": "again", "groups": TOGETHER, "packing": "single"},
    {"kind": "prefill", "name": "padded", "groups": TOGETHER, "packing": "padded"},
    {"kind": "train_forward", "name": "train", "groups": TOGETHER, "packing": "single"},
    {"kind": "perturb", "name": "canary", "groups": [[0, 1]]},
]
LAB = Path(__file__).parent / "megatron_lab.py"
ODD = (
    "qwen3", "qwen3_tied", "llama", "llama_biased", "llama_tied_linear", "moe", "moe_whole_softmax", "moe_dense_first",
)  # fmt: skip


@pytest.fixture(scope="module")
def scored(drive: Drive, tiny: dict[str, Path], answered: Pairs) -> Report:
    return drive(engine="megatron", model=tiny["qwen3_moe"], sequences=answered, steps=STEPS)


@pytest.fixture(scope="module")
def lab(interpreter: str, stage: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    work = tmp_path_factory.mktemp("lab")
    out = work / "out.json"
    command = [interpreter, str(LAB), str(stage), str(work), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, errors="replace")
    assert done.returncode == 0, done.stderr[-3000:]
    report: dict[str, Report] = json.loads(out.read_text(encoding="utf-8"))
    return report


def test_every_layout_scores_every_response_token_and_a_repeat_is_bitwise(scored: Report, different: Different) -> None:
    names = ("single", "padded", "train")
    assert {name: len(scored["steps"][name]["rows"]) for name in names} == dict.fromkeys(names, 72)
    assert different(scored, "single", "again") == (0, 72)


def test_the_training_forward_has_the_bits_of_scoring_and_reaches_every_parameter(
    scored: Report, different: Different
) -> None:
    assert different(scored, "single", "train") == (0, 72)
    gradients = scored["steps"]["train"]["info"]["gradients"]
    assert gradients["parameters"] > 0
    assert (gradients["unreached"], gradients["not_finite"]) == ([], [])
    computation = scored["steps"]["train"]["computation"]
    assert (computation["mode"], computation["grad"], computation["backward"]) == ("train", True, True)


def test_fused_parameters_and_experts_read_back_have_the_checkpoints_digest(scored: Report) -> None:
    assert (scored["weights"]["root"], scored["weights"]["unreadable"]) == (scored["checkpoint"], {})


def test_one_ulp_changes_logprobs_and_its_undo_restores_every_bit(scored: Report) -> None:
    canary = scored["steps"]["canary"]
    assert canary["before"] != canary["during"]
    assert canary["before"] == canary["after"]
    assert canary["touched"]["weight"] == "model.norm.weight"


def test_it_says_what_it_built(scored: Report) -> None:
    stable = scored["describe"]["stable"]
    assert stable["model"]["vocabulary"] == {"of_the_checkpoint": 1024, "padded_to": 1024}
    assert (stable["model"]["spec"], stable["model"]["attention"]) == ("local", "DotProductAttention")
    assert (stable["config"]["num_moe_experts"], stable["cuda_stand_ins"]) == (8, True)


@pytest.mark.parametrize("name", ODD)
def test_logits_and_gradients_are_those_of_transformers_up_to_float32(lab: dict[str, Report], name: str) -> None:
    """No verdict: this far apart no mapping is wrong; how far bits are apart is what the product's checks say."""
    report = lab["odd"][name]
    assert report["logits"] < 1e-4
    assert report["gradients"] < 1e-4
    assert (report["not_finite"], report["unreached"]) == ([], [])


@pytest.mark.parametrize("name", ODD)
def test_float32_parameters_are_the_checkpoints_bytes(lab: dict[str, Report], name: str) -> None:
    assert (lab["odd"][name]["weights"], lab["odd"][name]["unreadable"]) == (True, {})


@pytest.mark.parametrize("name", ODD)
def test_lanes_that_pad_the_vocabulary_are_in_no_logit_and_no_sum(lab: dict[str, Report], name: str) -> None:
    assert lab["odd"][name]["vocabulary"] == [384, 300]
    assert lab["odd"][name]["padding"] < 1e-4


@pytest.mark.parametrize(("name", "layers"), [("moe", 2), ("moe_whole_softmax", 1), ("moe_dense_first", 1)])
def test_tokens_go_to_the_experts_that_transformers_chooses(lab: dict[str, Report], name: str, layers: int) -> None:
    assert lab["odd"][name]["routing"] == {"equal": 40 * layers, "rows": 40 * layers, "layers": layers}


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        ("generate", "unsupported_step", "scores and trains"),
        ("packed", "unsupported_packing", "local layers refuse packed sequences (thd) in DotProductAttention"),
        ("yarn", "unsupported_model", "rope_parameters.rope_type: got 'yarn'"),
        ("left_over", "checkpoint_mismatch", "no parameter for model.layers.1"),
        ("missing", "checkpoint_mismatch", "has no model.layers.2"),
        ("shape", "checkpoint_mismatch", "Megatron-Core's decoder.layers.0.mlp"),
        ("untied", "checkpoint_mismatch", "has no lm_head.weight"),
        ("other_head", "checkpoint_mismatch", "lm_head.weight is tied, but not the embedding's bytes"),
        ("transformer_engine", "unsupported_option", "needs a GPU"),
        ("cuda", "unsupported_option", "sees no GPU"),
        ("alltoall", "unsupported_option", "CUDA streams"),
    ],
)
def test_what_it_cannot_do_is_said(lab: dict[str, Report], asked: str, code: str, words: str) -> None:
    found, message = lab["refused"][asked]
    assert (found, words in message) == (code, True), message
