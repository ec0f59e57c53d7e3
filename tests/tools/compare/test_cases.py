"""Public bug reports, rebuilt small: each must get its right verdict (the numbers are those of the reports)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bitgate.tools.captures import Capture
from bitgate.tools.compare import Comparison, compare_legs, compare_views
from bitgate.tools.engines.worker.capture import weights_digest
from bitgate.tools.reasons import reason, verdict_of

Columns = dict[str, np.ndarray]
Make = Callable[..., Capture]
F32 = np.float32


def bf16(values: np.ndarray) -> np.ndarray:
    """Rounded to the nearest bf16, ties to even, as fp32."""
    bits = np.ascontiguousarray(values, F32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(F32)


def log_softmax_at(logits: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    shifted = logits.astype(F32) - logits.max(-1, keepdims=True)
    total = np.log(np.exp(shifted).sum(-1, dtype=F32), dtype=F32)
    return np.minimum(shifted[np.arange(len(tokens)), tokens] - total, F32(0))


def rows_of(logprob: np.ndarray, tokens: np.ndarray, length: int, **other: np.ndarray) -> Columns:
    count = len(logprob)
    return {
        "sequence": np.arange(count) // length,
        "position": np.arange(count) % length,
        "token_id": tokens,
        "mask": np.ones(count, np.uint8),
        "logprob": logprob.astype(F32),
        **other,
    }


def codes(result: Comparison) -> set[str]:
    return {reason.code for reason in result.reasons}


def pair(make: Make, rollout: Columns, trainer: Columns, **arguments: Any) -> Comparison:
    found = {"rollout": make(rollout, "rollout"), "recompute": make(trainer, "recompute", **arguments)}
    return compare_legs(found, required=found)


class TinyHead:
    """Hidden states, a norm weight and an unembedding, in bf16 as a checkpoint would hold them."""

    def __init__(self, rows: int = 512, width: int = 64, vocabulary: int = 97) -> None:
        rng = np.random.default_rng(11)
        self.hidden = bf16(rng.normal(size=(rows, width)))
        self.weight = bf16(1 + rng.normal(size=width) / 4)
        self.head = bf16(rng.normal(size=(width, vocabulary)) / 4)
        self.tokens = rng.integers(0, vocabulary, rows)

    def logprobs(self, normed: np.ndarray) -> np.ndarray:
        return log_softmax_at(normed @ self.head, self.tokens)

    def scale(self) -> np.ndarray:
        return self.hidden / np.sqrt(np.square(self.hidden).mean(-1, keepdims=True) + F32(1e-6))


def test_case_1_a_norm_that_casts_before_its_weight_fails_in_most_tokens(make: Make) -> None:
    head = TinyHead()
    after, before = bf16(head.scale() * head.weight), bf16(bf16(head.scale()) * head.weight)
    assert 0.6 < float((after == before).mean()) < 0.9
    left, right = (rows_of(head.logprobs(normed), head.tokens, 64) for normed in (after, before))
    result = pair(make, left, right)
    assert result.verdict == "fail"
    assert result.pairs["rollout/recompute"].different > 500


def scan(decay: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """The recurrence s = a s + x, one step at a time."""
    state, outputs = np.zeros(inputs.shape[1], F32), []
    for step, value in zip(decay, inputs, strict=True):
        state = (step * state + value).astype(F32)
        outputs.append(state)
    return np.array(outputs)


def chunked_scan(decay: np.ndarray, inputs: np.ndarray, size: int) -> np.ndarray:
    """The same sum, each chunk as one product of a lower-triangular matrix plus the carried state."""
    state, outputs = np.zeros(inputs.shape[1], F32), []
    for start in range(0, len(inputs), size):
        a, x = decay[start : start + size], inputs[start : start + size]
        log = np.cumsum(np.log(a), dtype=F32)
        mix = np.tril(np.exp(log[:, None] - log[None, :], dtype=F32))
        block = (mix @ x + np.exp(log, dtype=F32)[:, None] * state).astype(F32)
        outputs.append(block)
        state = block[-1]
    return np.concatenate(outputs)


@pytest.mark.parametrize("size", [16, 7, 64])
def test_case_3_a_chunked_scan_fails_the_phase_check_although_batches_agree(make: Make, size: int) -> None:
    rng = np.random.default_rng(5)
    decay, inputs = rng.uniform(0.8, 0.99, 64).astype(F32), rng.normal(size=(64, 32)).astype(F32)
    head, tokens = (rng.normal(size=(32, 50)) / 4).astype(F32), rng.integers(0, 50, 64)
    decode = log_softmax_at(scan(decay, inputs) @ head, tokens)
    prefill = log_softmax_at(chunked_scan(decay, inputs, size) @ head, tokens)
    phase = {"phase": np.ones(64, np.uint8)}
    reference = make(rows_of(decode, tokens, 64, **phase), "decode")
    alone = compare_views(reference, {"batch of 8": make(rows_of(decode, tokens, 64, **phase), "batch")})
    assert alone.verdict == "pass"
    whole = rows_of(prefill, tokens, 64, phase=np.zeros(64, np.uint8), chunk=np.arange(64) // size)
    result = compare_views(reference, {"chunked prefill": make(whole, "prefill")})
    assert result.verdict == "fail"
    found = result.pairs["chunked prefill"]
    assert set(found.clusters) >= {"phase of prefill", "phase of decode", "chunk_edge of prefill"}
    assert found.clusters["phase of prefill"][0].value == "prefill"


def test_case_6_an_eager_pass_says_nothing_about_graphs(make: Make, columns: Columns) -> None:
    eager = compare_views(make(columns, "reference"), {"eager": make(columns, "eager")})
    assert eager.verdict == "pass"
    missing = reason("axis_not_exercised", "graphs: the side's deployment captures CUDA graphs, no step replayed one")
    assert verdict_of([*eager.reasons, missing]) == "inconclusive"


def test_case_9_merging_a_shared_prefix_fails_only_where_it_is_shared(make: Make) -> None:
    rng = np.random.default_rng(3)
    scores, values = rng.normal(size=(8, 40, 96)).astype(F32) * 3, rng.normal(size=(8, 96, 16)).astype(F32)
    head, tokens = rng.normal(size=(16, 30)).astype(F32), rng.integers(0, 30, 320)

    def part(some: np.ndarray, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        top = some.max(-1, keepdims=True)
        weights = np.exp(some - top, dtype=F32)
        total = weights.sum(-1, keepdims=True, dtype=F32)
        return (weights @ value) / total, top + np.log(total, dtype=F32)

    def attention(shared: set[int]) -> np.ndarray:
        outputs = []
        for sequence in range(8):
            some, value = scores[sequence], values[sequence]
            if sequence in shared:
                (one, lse_one), (two, lse_two) = part(some[:, :64], value[:64]), part(some[:, 64:], value[64:])
                share = 1 / (1 + np.exp(lse_two - lse_one, dtype=F32))
                outputs.append((share * one + (1 - share) * two).astype(F32))
            else:
                outputs.append(part(some, value)[0])
        return log_softmax_at(np.concatenate(outputs) @ head, tokens)

    single, cascade = (rows_of(attention(shared), tokens, 40) for shared in (set(), {2, 5}))
    alone = {name: values[:80] for name, values in cascade.items()}
    reference = make(single, "reference")
    assert compare_views(reference, {"no prefix": make(alone, "alone")}, partial={"no prefix"}).verdict == "pass"
    result = compare_views(reference, {"shared prefix": make(cascade, "cascade")})
    assert result.verdict == "fail"
    assert {cluster.value for cluster in result.pairs["shared prefix"].clusters["sequence"]} == {"2", "5"}


@pytest.mark.parametrize("lane", [0.0, -4.0])
def test_case_11_padded_vocabulary_lanes_fail_although_the_contracts_agree(make: Make, lane: float) -> None:
    """The padding rows of the unembedding are zero or left over, and one side's sum runs over them."""
    rng = np.random.default_rng(9)
    logits, tokens = rng.normal(size=(64, 15193)).astype(F32) * 3, rng.integers(0, 15193, 64)
    padded = np.concatenate([logits, np.full((64, 167), lane, F32)], 1)
    same = {"model": {"vocab_size": 15193, "architecture_digest": "cd" * 32}}
    found = {
        name: make(rows_of(log_softmax_at(values, tokens), tokens, 16), name, **same)
        for name, values in (("rollout", logits), ("recompute", padded))
    }
    result = compare_legs(found, required=found)
    assert codes(result) == {"logprobs_differ", "cause_unresolved"}


@pytest.mark.parametrize("top_p", [0.9, 0.95, 0.5])
def test_case_18_logprobs_renormalised_by_top_p_are_invalid(make: Make, columns: Columns, top_p: float) -> None:
    offset = {**columns, "logprob": np.minimum(columns["logprob"] - F32(np.log(top_p)), F32(0))}
    found = {
        "rollout": make(offset, "rollout", sampling={"temperature": 1.0, "top_p": top_p}),
        "recompute": make(columns, "recompute"),
    }
    result = compare_legs(found, required=found)
    assert (result.verdict, codes(result)) == ("invalid", {"sampling_contract"})


@pytest.mark.parametrize("padding", [-1e10, np.nan, np.inf, 5.0])
def test_case_20_padding_never_reaches_the_statistics(make: Make, columns: Columns, padding: float) -> None:
    padded = {**columns, "logprob": np.where(columns["mask"] == 1, columns["logprob"], F32(padding))}
    statistics = pair(make, columns, padded).pairs["rollout/recompute"].statistics
    assert statistics is not None
    assert (statistics.k3.max, statistics.k3.mean, statistics.probability_difference.max) == (0, 0, 0)


def test_case_20_minus_infinity_under_the_mask_is_invalid(make: Make, columns: Columns) -> None:
    logprob = columns["logprob"].copy()
    logprob[0] = -np.inf
    assert codes(pair(make, {**columns, "logprob": logprob}, columns)) == {"not_finite"}


def test_case_21_the_usual_metrics_show_zero_where_every_token_differs(make: Make) -> None:
    rng = np.random.default_rng(1)
    one, two = (-rng.uniform(1e-9, 2.9e-8, 10_000).astype(F32) for _ in range(2))
    tokens = rng.integers(0, 9, 10_000)
    found = pair(make, rows_of(one, tokens, 100), rows_of(two, tokens, 100)).pairs["rollout/recompute"]
    assert found.verdict == "fail" and found.different > 9_990
    assert found.statistics is not None
    assert found.statistics.fp32_probability_difference_max == 0 and found.statistics.fp32_k3_mean == 0
    assert found.statistics.probability_difference.max > 0


def updated(weights: dict[str, np.ndarray], step: int) -> dict[str, np.ndarray]:
    rate = F32(0 if step == 0 else 1e-3)
    rng = np.random.default_rng(step)
    return {name: value - rate * rng.normal(size=value.shape).astype(F32) for name, value in weights.items()}


def test_case_25_a_rolled_back_engine_is_invalid_from_the_step_where_weights_move(make: Make, columns: Columns) -> None:
    """The first update has learning rate zero, so a check of the first step sees nothing."""
    trainer = {"w": np.random.default_rng(0).normal(size=(8, 8)).astype(F32)}
    engine, seen = trainer, []
    for step in range(3):
        trainer = updated(trainer, step)
        legs = {
            "rollout": make(columns, f"rollout{step}", weights=weights_digest(engine.items(), step)),
            "recompute": make(columns, f"recompute{step}", weights=weights_digest(trainer.items(), step)),
        }
        result = compare_legs(legs, required=legs)
        seen.append((result.verdict, codes(result)))
    assert seen == [("pass", set()), ("invalid", {"weights_differ"}), ("invalid", {"weights_differ"})]


@pytest.mark.parametrize(
    "layout",
    [
        lambda w: np.concatenate([w[1::2], w[0::2]]),
        lambda w: w[::-1],
        lambda w: w.T,
        lambda w: w.reshape(2, 2, 2, 8),
    ],
    ids=["26: interleaved w13", "reversed", "transposed", "28: kernel layout"],
)
def test_cases_26_and_28_the_same_bytes_in_another_layout_are_other_weights(
    make: Make, columns: Columns, layout: Callable[[np.ndarray], np.ndarray]
) -> None:
    w13 = np.random.default_rng(0).normal(size=(8, 8)).astype(F32)
    moved = layout(w13)
    assert sorted(w13.ravel()) == sorted(moved.ravel())
    legs = {
        "rollout": make(columns, "rollout", weights=weights_digest([("w13", moved)])),
        "recompute": make(columns, "recompute", weights=weights_digest([("w13", w13)])),
    }
    assert codes(compare_legs(legs, required=legs)) == {"weights_differ"}


def test_case_33_merging_and_unmerging_an_adapter_drifts_and_is_seen_in_the_digest(make: Make) -> None:
    head = TinyHead()
    rng = np.random.default_rng(4)
    adapter = (rng.normal(size=(64, 4)) @ rng.normal(size=(4, 97)) / 40).astype(F32)
    base, drifted = head.head, head.head
    for _ in range(50):
        drifted = bf16(bf16(drifted + adapter) - adapter)
    legs = {}
    for name, weights in (("rollout", drifted), ("recompute", base)):
        head.head = weights
        rows = rows_of(head.logprobs(head.hidden), head.tokens, 64)
        legs[name] = make(rows, name, weights=weights_digest([("head", weights)]))
        legs[f"{name} unstated"] = make(rows, f"{name}2")
    stated = {name: legs[name] for name in ("rollout", "recompute")}
    assert codes(compare_legs(stated, required=())) == {"weights_differ"}
    unstated = {name: legs[name] for name in ("rollout unstated", "recompute unstated")}
    assert codes(compare_legs(unstated, required=())) == {"logprobs_differ", "cause_unresolved"}


@pytest.mark.parametrize("narrow", [bf16, lambda values: values.astype(np.float16).astype(F32)], ids=["bf16", "fp16"])
@pytest.mark.parametrize("side", ["rollout", "recompute", "both"])
def test_logprobs_widened_from_fewer_bits_are_invalid(make: Make, columns: Columns, narrow: Any, side: str) -> None:
    """bf16 storage makes most differing values look equal."""
    coarse = {**columns, "logprob": narrow(columns["logprob"])}
    left, right = (coarse if side in (name, "both") else columns for name in ("rollout", "recompute"))
    assert "logprob_precision" in codes(pair(make, left, right))


def test_every_other_sequence_stored_as_bf16_is_invalid(make: Make, make_columns: Callable[..., Columns]) -> None:
    columns = make_columns(40, 64)
    half = np.where(columns["sequence"] % 2 == 0, bf16(columns["logprob"]), columns["logprob"])
    assert "logprob_precision" in codes(pair(make, {**columns, "logprob": half}, {**columns, "logprob": half}))


@pytest.mark.parametrize("rows", [4, 7, 15])
def test_a_few_rows_are_enough_to_see_bf16(make: Make, make_columns: Callable[..., Columns], rows: int) -> None:
    columns = make_columns(1, 64, rows)
    few = {name: values[columns["logprob"] < -0.1][:rows] for name, values in columns.items()}
    coarse = {**few, "logprob": bf16(few["logprob"])}
    assert codes(pair(make, coarse, coarse)) == {"logprob_precision"}


def test_a_few_round_numbers_are_not_taken_for_bf16(make: Make, columns: Columns) -> None:
    few = {name: values[:4] for name, values in columns.items()} | {"logprob": F32([-0.5, -1.25, -2, -0.75])}
    assert pair(make, few, few).verdict == "pass"


def test_one_row_in_ten_stored_as_bf16_is_invalid(make: Make, make_columns: Callable[..., Columns]) -> None:
    columns = make_columns(40, 64)
    some = np.where(np.arange(40 * 64) % 9 == 0, bf16(columns["logprob"]), columns["logprob"])
    assert "logprob_precision" in codes(pair(make, {**columns, "logprob": some}, {**columns, "logprob": some}))


@pytest.mark.parametrize("both", [True, False])
def test_one_rank_of_many_that_stores_bf16_is_invalid(
    make: Make, make_columns: Callable[..., Columns], both: bool
) -> None:
    columns = make_columns(64, 64)
    coarse = columns["logprob"].copy()
    coarse[7 * 64 : 8 * 64] = bf16(coarse[7 * 64 : 8 * 64])
    narrow = {**columns, "logprob": coarse}
    result = pair(make, narrow if both else columns, narrow)
    assert codes(result) == {"logprob_precision"}
    assert "together from row" in result.reasons[0].detail
    assert "in all" not in result.reasons[0].detail  # the sentence has its figures


def test_large_logits_leave_honest_values_that_end_in_zeros(make: Make) -> None:
    """logit - logsumexp at 40: up to a tenth of the values near zero end like bf16, here and there."""
    rng = np.random.default_rng(8)
    lse = F32(40) + rng.normal(size=4096).astype(F32)
    logprob = np.minimum((lse - rng.exponential(1.0, 4096).astype(F32)) - lse, F32(0))
    rows = rows_of(logprob, np.zeros(4096, np.int64), 64)
    assert pair(make, rows, rows).verdict == "pass"


def test_confident_tokens_of_fp32_are_not_taken_for_bf16(make: Make) -> None:
    """logit - logsumexp cancels: near zero an honest fp32 value has few bits left."""
    rng = np.random.default_rng(6)
    logits = rng.normal(size=(512, 20)).astype(F32)
    logits[:, 0] = 24
    lse = np.log(np.exp(logits, dtype=F32).sum(-1, dtype=F32), dtype=F32)
    confident = rows_of(np.minimum(logits[:, 0] - lse, F32(0)), np.zeros(512, np.int64), 64)
    assert pair(make, confident, confident).verdict == "pass"


def test_a_dtype_that_the_writer_recorded_is_enough_to_refuse(make: Make, columns: Columns) -> None:
    few = {name: values[:2] for name, values in columns.items()}
    narrow = {**few, "logprob": few["logprob"].astype(np.float16)}
    assert codes(pair(make, narrow, few)) == {"logprob_precision"}
