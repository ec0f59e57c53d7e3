"""Attention of the CPU engine in fixed query tiles: long prompts, whose keys the kernel takes in several tiles."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine

HERE = Path(__file__).parent
SETTINGS = (
    "grouped heads",
    "three heads a group",
    "head size of another kernel",
    "wide heads",
    "window",
    "window longer than a key tile",
    "fp8 cache",
)
Report = dict[str, Any]
Drive = Callable[..., Report]
Different = Callable[[Report, str, str], tuple[int, int]]

PROMPTS, RESPONSE = (900, 1300, 1040, 1187), 4
TOGETHER = [list(range(len(PROMPTS)))]
ALONE = [[i] for i in TOGETHER[0]]
STEPS = [
    {"kind": "decode", "name": "decode", "groups": TOGETHER},
    {"kind": "decode", "name": "decode_alone", "groups": ALONE},
    {"kind": "prefill", "name": "prefill", "groups": TOGETHER},
    {"kind": "prefill", "name": "prefill_alone", "groups": ALONE},
]


@pytest.fixture(scope="module")
def lab(interpreter: str, stage: Path) -> dict[str, Any]:
    done = subprocess.run(
        [interpreter, str(HERE / "attention_lab.py"), str(stage)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout[done.stdout.index('{"settings"') :])
    return found


@pytest.mark.parametrize("setting", SETTINGS)
def test_in_tiles_attention_has_the_same_bits_alone_in_chunks_and_in_decode(lab: dict[str, Any], setting: str) -> None:
    assert lab["settings"][setting]["tiles"] == {"alone": 0, "chunks": 0, "decode": 0}


def test_without_tiles_company_chunk_and_phase_change_bits(lab: dict[str, Any]) -> None:
    for cause in ("alone", "chunks", "decode"):
        assert any(found["plain"][cause] for found in lab["settings"].values())


def test_tiles_are_cut_at_the_edges_and_nowhere_else(lab: dict[str, Any]) -> None:
    assert lab["laws"] == 300


@pytest.fixture(scope="module")
def long_prompts() -> list[tuple[list[int], list[int]]]:
    return [([(7 * i * n + i) % 1000 + 3 for i in range(n)], [(11 * i + n) % 1000 + 3 for i in range(RESPONSE)])
            for n in PROMPTS]  # fmt: skip


@pytest.fixture(scope="module")
def engines(drive: Drive, tiny: dict[str, Path], long_prompts: Any) -> Callable[[str, Any], Report]:
    """One engine for each (engine, batch_invariant); vLLM with a budget that cuts the prompts into uneven chunks."""
    made: dict[tuple[str, Any], Report] = {}

    def of(engine: str, invariant: Any) -> Report:
        if (engine, invariant) not in made:
            options = {"enforce_eager": True, "max_model_len": 1536, "batch_invariant": invariant}
            options |= {"max_num_batched_tokens": 1536} if engine == "vllm" else {}
            packed = [{**step, "packing": "packed"} for step in STEPS if step["kind"] == "prefill"]
            steps = STEPS if engine == "vllm" else packed
            made[engine, invariant] = drive(
                engine=engine, model=tiny["qwen3"], options=options, sequences=long_prompts, steps=steps
            )
        return made[engine, invariant]

    return of


@pytest.mark.parametrize("step", ["decode_alone", "prefill", "prefill_alone"])
def test_with_batch_invariance_long_prompts_have_the_same_bits(
    engines: Callable[[str, Any], Report], different: Different, step: str
) -> None:
    report = engines("vllm", True)
    assert report["steps"]["decode"]["info"]["prefill_chunks"] >= 2
    assert different(report, "decode", step) == (0, len(PROMPTS) * RESPONSE)


def test_with_products_in_tiles_alone_they_have_not(
    engines: Callable[[str, Any], Report], different: Different
) -> None:
    report = engines("vllm", "products")
    changed = [different(report, "decode", step)[0] for step in ("decode_alone", "prefill", "prefill_alone")]
    assert max(changed) > 0
    found = report["describe"]["stable"]["batch_invariant"]
    assert (found["requested"], found["without_tiles"]) == ("products", [])
    assert report["describe"]["volatile"]["in_tiles"]["tiled_attentions"] == 0


def test_describe_says_what_attention_does(engines: Callable[[str, Any], Report]) -> None:
    described = engines("vllm", True)["describe"]
    found = described["stable"]
    tiles = found["batch_invariant"]
    assert (described["volatile"]["in_tiles"]["tiled_attentions"], tiles["attention_without_tiles"]) == (4, [])
    assert all(
        f"queries={queries}," in name for queries in tiles["tile_queries"] for name in found["kernels"]["attention"]
    )
    assert "queries=all," in engines("vllm", "products")["describe"]["stable"]["kernels"]["attention"][0]


def test_the_trainer_of_the_same_kernels_has_the_engines_bits_on_long_prompts(
    engines: Callable[[str, Any], Report], different: Different
) -> None:
    rollout, trainer = engines("vllm", True), engines("vllm_kernels", True)
    for step in ("prefill", "prefill_alone"):
        both = {"steps": {"rollout": rollout["steps"]["decode"], "trainer": trainer["steps"][step]}}
        assert different(both, "rollout", "trainer") == (0, len(PROMPTS) * RESPONSE)
    kernels = [report["describe"]["stable"]["kernels"]["attention"] for report in (rollout, trainer)]
    assert kernels[0] == kernels[1]
