"""Real vLLM on this CPU. Engines are started once a configuration and shared by the tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.engine

Report = dict[str, Any]
Drive = Callable[..., Report]
Different = Callable[[Report, str, str], tuple[int, int]]
Pairs = list[tuple[list[int], list[int]]]

TOGETHER = [list(range(12))]
ALONE = [[i] for i in range(12)]
GENERATE = {"kind": "generate", "groups": TOGETHER, "max_tokens": 16, "sampling": {"temperature": 0.0}}
STEPS = [
    {**GENERATE, "name": "free"},
    {**GENERATE, "name": "repeated"},
    {"kind": "decode", "name": "forced", "groups": TOGETHER},
    {"kind": "decode", "name": "forced_alone", "groups": ALONE},
    {"kind": "prefill", "name": "prefill", "groups": TOGETHER},
    {"kind": "prefill", "name": "prefill_alone", "groups": ALONE},
    {"kind": "decode", "name": "resumed", "groups": TOGETHER, "prefilled": 8, "reset_cache": True},
    {"kind": "decode", "name": "cached", "groups": TOGETHER, "prefilled": 8},
    {"kind": "decode", "name": "in_company", "groups": TOGETHER, "company": [0, 1, 2]},
    {"kind": "perturb", "name": "canary", "groups": [[0, 1, 8]]},
]
INVARIANT = {"enforce_eager": True, "max_model_len": 1024, "batch_invariant": True}


@pytest.fixture(scope="module")
def as_it_comes(drive: Drive, tiny: Report, mixed: Pairs) -> Report:
    options = {"enforce_eager": True, "max_model_len": 1024}
    return drive(engine="vllm", model=tiny["qwen3"], options=options, sequences=mixed, steps=STEPS)


@pytest.fixture(scope="module")
def invariant(drive: Drive, tiny: Report, mixed: Pairs) -> Report:
    """Batch-invariant, with a budget that cuts prompts into chunks."""
    options = {**INVARIANT, "max_num_batched_tokens": 64, "max_num_seqs": 32}
    return drive(engine="vllm", model=tiny["qwen3"], options=options, sequences=mixed, steps=STEPS)


@pytest.fixture(scope="module")
def experts(drive: Drive, tiny: Report, mixed: Pairs) -> Report:
    """Batch-invariant mixture of experts, with a cache so small that sequences are evicted."""
    options = {**INVARIANT, "max_model_len": 512, "block_size": 32, "num_gpu_blocks_override": 33}
    return drive(engine="vllm", model=tiny["qwen3_moe"], options=options, sequences=mixed, steps=STEPS)


def test_a_repeated_batch_has_equal_bits(as_it_comes: Report, different: Different) -> None:
    assert different(as_it_comes, "free", "repeated") == (0, 192)


def test_forced_decode_of_greedy_tokens_has_the_bits_of_free_decode(as_it_comes: Report, different: Different) -> None:
    assert different(as_it_comes, "free", "forced") == (0, 192)


def test_without_batch_invariance_company_changes_bits(as_it_comes: Report, different: Different) -> None:
    changed, compared = different(as_it_comes, "free", "forced_alone")
    assert (changed > 0, compared) == (True, 192)


@pytest.mark.parametrize(
    "step", ["repeated", "forced", "forced_alone", "prefill", "prefill_alone", "resumed", "cached"]
)
@pytest.mark.parametrize("run", ["invariant", "experts"])
def test_with_batch_invariance_no_bit_depends_on_batch_phase_chunk_cache_or_eviction(
    run: str, step: str, request: pytest.FixtureRequest, different: Different
) -> None:
    changed, compared = different(request.getfixturevalue(run), "free", step)
    assert (changed, compared) == (0, 96 if step in ("resumed", "cached") else 192)


def test_chunks_cache_hits_and_evictions_are_counted(invariant: Report, experts: Report) -> None:
    assert invariant["steps"]["free"]["info"]["prefill_chunks"] >= 3
    assert invariant["steps"]["resumed"]["info"]["cached_tokens"] == 0
    assert invariant["steps"]["cached"]["info"]["cached_tokens"] >= 128 * 6
    assert invariant["steps"]["free"]["info"]["preemptions"] == 0
    assert experts["steps"]["free"]["info"]["preemptions"] >= 1
    assert invariant["steps"]["free"]["info"]["graph_replays"] is None


def test_rows_say_how_they_were_computed(as_it_comes: Report, mixed: Pairs) -> None:
    first, later = (as_it_comes["steps"]["free"]["rows"][f"0 {len(mixed[0][0]) + i}"] for i in (0, 1))
    # The first token's logits come from the prompt's prefill, those of the next one from a decode step.
    assert (first[2], later[2], later[4]) == (0, 1, 12)
    assert as_it_comes["steps"]["prefill"]["rows"][f"0 {len(mixed[0][0]) + 1}"][2] == 0
    assert as_it_comes["steps"]["forced_alone"]["rows"][f"0 {len(mixed[0][0]) + 1}"][4] == 1


def test_company_is_submitted_but_leaves_no_rows(invariant: Report, different: Different) -> None:
    rows = invariant["steps"]["in_company"]["rows"]
    assert {key.split()[0] for key in rows} == {str(i) for i in range(3, 12)}
    assert different(invariant, "free", "in_company") == (0, 144)


@pytest.mark.parametrize("run", ["as_it_comes", "invariant", "experts"])
def test_one_ulp_in_one_weight_changes_logprobs_and_its_undo_restores_every_bit(
    run: str, request: pytest.FixtureRequest
) -> None:
    canary = request.getfixturevalue(run)["steps"]["canary"]
    assert canary["before"] != canary["during"]
    assert canary["before"] == canary["after"]


@pytest.mark.parametrize("run", ["as_it_comes", "invariant", "experts"])
def test_resident_weights_have_the_checkpoints_digest(run: str, request: pytest.FixtureRequest) -> None:
    report = request.getfixturevalue(run)
    assert report["weights"]["unreadable"] == {}
    assert report["weights"]["root"] == report["checkpoint"]


def test_a_tied_head_and_llama_names_have_the_checkpoints_digest(drive: Drive, tiny: Report) -> None:
    report = drive(engine="vllm", model=tiny["llama"], options={"enforce_eager": True, "max_model_len": 256})
    assert (report["weights"]["root"], report["weights"]["unreadable"]) == (report["checkpoint"], {})


def test_describe_says_what_was_really_chosen(as_it_comes: Report, invariant: Report) -> None:
    plain, tiles = as_it_comes["describe"]["stable"], invariant["describe"]["stable"]
    assert plain["platform"] == "cpu"
    assert plain["attention"]["backends"] == ["CPU_ATTN"]
    assert plain["batch_invariant"]["requested"] is False
    assert not any("tiles" in kernel for kernels in plain["operators"].values() for kernel in kernels)
    assert tiles["batch_invariant"]["without_tiles"] == []
    assert tiles["batch_invariant"]["VLLM_CPU_ATTN_SPLIT_KV"] is False
    assert all("in tiles of 16 rows" in kernel for kernel in tiles["operators"]["QKVParallelLinear"])


def test_a_missing_model_and_an_unsupported_one_have_their_codes(drive: Drive, tmp_path: Any) -> None:
    missing = drive(engine="vllm", model=tmp_path / "nowhere")
    assert missing["error"]["code"] == "model_not_found"
    (tmp_path / "config.json").write_text(
        '{"architectures": ["NoSuchModel"], "model_type": "no_such"}', encoding="utf-8"
    )
    unknown = drive(engine="vllm", model=tmp_path, options={"enforce_eager": True})
    assert unknown["error"]["code"] == "unsupported_model"
    assert str(tmp_path) in unknown["error"]["message"]
