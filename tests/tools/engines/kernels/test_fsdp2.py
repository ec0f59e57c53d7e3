"""Sharded weights, the same operators: two FSDP2 ranks have the rollout's bits too."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.engine

EXAMPLE = Path(__file__).parents[4] / "docs/examples/fsdp2_trainer.py"


@pytest.fixture(scope="module")
def report(bench: Any, case: Callable[[str, int], Any]) -> dict[str, Any]:
    made = case("qwen3", 0)
    whole = [[*prompt, *answer] for prompt, answer in zip(made.prompts, made.responses, strict=True)]
    options = {"enforce_eager": True, "max_model_len": 512, "dtype": "bfloat16"}
    job, out = bench.folder / "fsdp.json", bench.folder / "fsdp-report.json"
    body = {"sequences": whole, "response_starts": list(map(len, made.prompts)), "options": options}
    job.write_text(json.dumps(body, allow_nan=False), encoding="utf-8")
    command = [bench.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(EXAMPLE)]
    arguments = [str(made.model), str(job), str(out), "--recompute", "--save", str(bench.folder / "fsdp-stepped")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found


def response_bits(made: Any, bits: list[int]) -> dict[tuple[int, int, int], int]:
    keyed, start = {}, 0
    for index, (prompt, answer) in enumerate(zip(made.prompts, made.responses, strict=True)):
        rows = bits[start : start + len(prompt) + len(answer) - 1]
        start += len(rows)
        for offset, token in enumerate(answer):
            value = int(np.int32(rows[len(prompt) - 1 + offset]).view(np.uint32))
            keyed[index, len(prompt) + offset, token] = value
    return keyed


@pytest.mark.parametrize("forward", ["before", "train_bits"])
def test_two_ranks_have_the_rollouts_bits(
    case: Callable[[str, int], Any], report: dict[str, Any], forward: str
) -> None:
    made = case("qwen3", 0)
    assert report["ranks"] == 2
    assert response_bits(made, report[forward]) == made.rollout.bits("sampled")


def test_each_rank_holds_half_of_the_weights(report: dict[str, Any]) -> None:
    assert report["shard_elements"] * 2 == report["elements"]


def test_every_sharded_parameter_gets_a_gradient(report: dict[str, Any]) -> None:
    assert (report["unreached"], report["not_finite"], report["zero"]) == ([], [], [])


def test_the_step_changes_logprobs_and_is_saved_under_the_checkpoints_names(
    bench: Any, case: Callable[[str, int], Any], report: dict[str, Any]
) -> None:
    from bitgate.tools.engines.worker.weights import checkpoint_digest

    before, after = checkpoint_digest(case("qwen3", 0).model), checkpoint_digest(bench.folder / "fsdp-stepped")
    assert report["after"] != report["before"]
    assert before.by_name.keys() == after.by_name.keys()
    assert before.root() != after.root()
