"""Real engines, no fault put in: the causes that are there are found one after the other, and what fixes them is clean.

On a CPU vLLM's company shows in two places (docs/engines.md): oneDNN picks its kernel by the number of rows, attention
splits the keys by the load. `batch_invariant` fixes both; one part of it fixes one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tool_runs import evidence_of

from bitgate.store.records import Evidence
from bitgate.tools.bisect_layer import BisectRequest
from bitgate.tools.config.project import Project

pytestmark = pytest.mark.engine

TAIL = 3 * 145 + 1
"""Tokens of which chunked prefill leaves one to the last chunk: a product of one row, and keys split for one query.

In float32, where no rounding hides a sum in another order in the only row that has one; blocks so long that no prompts
at their edges join, whose tokens would fill that chunk.
"""
PROJECT = """
[model.tiny]
path = "{model}"
[side.rollout]
engine = "vllm"
python = "{python}"
env = {{ VLLM_CPU_KVCACHE_SPACE = "1" }}
options = {{ enforce_eager = true, max_model_len = 460 }}
[side.wide]
engine = "vllm"
python = "{python}"
env = {{ VLLM_CPU_KVCACHE_SPACE = "1" }}
options = {{ enforce_eager = true, max_model_len = 460, block_size = 512, dtype = "float32" }}
[workload.mixed]
max_tokens = 4
[workload.mixed.generator]
seed = 1
count = 6
length = [200, 450]
vocab = 1000
[workload.tail]
max_tokens = 4
[workload.tail.generator]
seed = 1
count = 1
length = [{prompt}, {prompt}]
vocab = 1000
"""

Found = Callable[..., Evidence]


@pytest.fixture(scope="module")
def bisected(engine_python: str, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """bisected(check, batch_invariant) -> the evidence, one run each, through the tool."""
    root = tmp_path_factory.mktemp("project")
    text = PROJECT.format(model=tiny, python=engine_python, prompt=TAIL - 4)
    (root / "bitgate.toml").write_text(text, encoding="utf-8")
    project = Project.load(root)
    made: dict[tuple[str, Any], Evidence] = {}

    def of(check: str, invariant: Any) -> Evidence:
        if (check, invariant) not in made:
            side, workload = {"batch": ("rollout", "mixed"), "phase": ("wide", "tail")}[check]
            given = {"check": check, "side": side, "workload": workload}
            options = {side: {"batch_invariant": invariant}}
            request = BisectRequest.model_validate(given | {"options": options})
            made[check, invariant] = evidence_of(project, "bisect_layer", request)
        return made[check, invariant]

    return of


def is_the_split(found: Evidence) -> None:
    cause: Any = found.figures["first_cause"]
    assert (found.verdict, cause["point"], cause["class"]) == ("fail", "layers.0.attn_out", "batch_variance")
    assert "splits the keys by the load" in cause["mechanism"]
    assert ("attention planned without splitting the keys, on both sides", "equal") in tried(found)


def is_the_product(found: Evidence) -> None:
    cause: Any = found.figures["first_cause"]
    # The widest sum of the model; in bf16 not every layer has a row whose rounding shows the other order.
    where = cause["point"].rpartition(".")[2]
    assert (found.verdict, where, cause["class"]) == ("fail", "mlp_out", "batch_variance"), found.summary
    assert cause["operators"]["first"] == "_C.onednn_mm.default"
    orders = [result for experiment, result in tried(found) if "accumulation order" in experiment]
    assert len(orders) == 2 and len({order.split()[1] for order in orders}) == 2, orders


def tried(found: Evidence) -> set[tuple[str, str]]:
    experiments: Any = found.figures["experiments"]
    return {(entry["experiment"], entry["result"]) for entry in experiments}


@pytest.mark.parametrize("check", ["batch", "phase"])
def test_with_nothing_fixed_the_causes_show_one_after_the_other_and_then_none(bisected: Found, check: str) -> None:
    is_the_split(bisected(check, False))
    is_the_product(bisected(check, "attention"))
    clean = bisected(check, True)
    assert (clean.verdict, clean.reasons) == ("pass", ()), clean.summary


def test_with_only_the_split_left_it_is_found(bisected: Found) -> None:
    is_the_split(bisected("batch", "products"))


def test_chunks_of_a_prompt_and_its_whole_are_the_pair_that_differs(bisected: Found) -> None:
    for invariant in (False, "attention"):
        cause: Any = bisected("phase", invariant).figures["first_cause"]
        assert cause["pair"] == "prefill: whole against chunked"


def test_an_answer_is_small_and_says_what_was_excluded_seen_and_how_to_see_it_again(bisected: Found) -> None:
    found = bisected("batch", "attention")
    figures: Any = found.figures
    assert len(json.dumps(figures)) < 10_000
    assert {"nondeterminism", "uninitialised_read", "weight_bytes"} <= set(figures["excluded"])
    assert all(pair["mandatory_missing"] == 0 and pair["mandatory"] > 20 for pair in figures["pairs"].values())
    assert figures["repro"]["exit_codes"] == [1, 1, 1]
    assert figures["first_cause"]["points_before_equal"] >= 20
