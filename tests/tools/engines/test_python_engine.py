"""A user's module with two functions, run in the engine's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine

Report = dict[str, Any]
Drive = Callable[..., Report]
Pairs = list[tuple[list[int], list[int]]]

GOOD = """
import torch

def load(model_path, options):
    return {"weight": torch.nn.Parameter(torch.full((4,), float(options.get("value", 2.0)))), "path": model_path}

def score(state, sequences, mode):
    logits = [-(state["weight"][0] * torch.ones(len(s.tokens) - s.response_start)) for s in sequences]
    return logits if mode == "train_forward" else [values.detach() for values in logits]

def weights(state):
    yield "model.norm.weight", state["weight"]
"""
STEPS = [
    {"kind": "prefill", "name": "scored", "groups": [[0, 1], [2]]},
    {"kind": "train_forward", "name": "trained", "groups": [[0, 1, 2]]},
    {"kind": "perturb", "name": "canary", "groups": [[0]]},
]


def run(drive: Drive, tiny: dict[str, Any], folder: Path, source: str, answered: Pairs, steps: list[Any]) -> Report:
    module = folder / "user_engine.py"
    module.write_text(source, encoding="utf-8")
    return drive(engine="python", model=tiny["llama"], module=str(module), sequences=answered, steps=steps)


def test_a_module_scores_trains_and_takes_a_canary(
    drive: Drive, tiny: dict[str, Any], tmp_path: Path, answered: Pairs
) -> None:
    report = run(drive, tiny, tmp_path, GOOD, answered, STEPS)
    assert report["error"] is None
    assert len(report["steps"]["scored"]["rows"]) == len(report["steps"]["trained"]["rows"]) == 36
    assert report["steps"]["trained"]["computation"]["backward"] is True
    canary = report["steps"]["canary"]
    assert canary["before"] != canary["during"] and canary["before"] == canary["after"]
    # What the module does not hand out stays unread, so its digest can equal no complete one.
    assert "model.embed_tokens.weight" in report["weights"]["unreadable"]
    assert report["weights"]["root"] != report["checkpoint"]


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (("def score(", "def rate("), "bad_module", "no function score"),
        (("s.response_start)) for", "s.response_start + 1)) for"), "bad_module_result", "shape [13]; allowed is [12]"),
        (("return logits if", "return 3 if"), "bad_module_result", "one entry a sequence"),
        (
            ("return logits if", "return [v.detach() for v in logits] if"),
            "bad_module_result",
            "must return torch tensors",
        ),
        (
            ("return logits if", "logits = [v.bfloat16() for v in logits]\n    return logits if"),
            "bad_module_result",
            "bfloat16",
        ),
        (("def weights(", "def other("), "unsupported_canary", "weights(state)"),
    ],
)
def test_what_is_wrong_with_a_module_is_said(
    change: tuple[str, str], code: str, words: str, drive: Drive, tiny: dict[str, Any], tmp_path: Path, answered: Pairs
) -> None:
    report = run(drive, tiny, tmp_path, GOOD.replace(*change), answered, [STEPS[1], STEPS[2]])
    assert report["error"]["code"] == code
    assert words in report["error"]["message"]


def test_a_module_that_is_not_there_is_said(drive: Drive, tiny: dict[str, Any], tmp_path: Path) -> None:
    report = drive(engine="python", model=tiny["llama"], module=str(tmp_path / "nowhere.py"))
    assert report["error"]["code"] == "module_not_found"
