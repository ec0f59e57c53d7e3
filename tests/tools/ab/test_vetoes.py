"""Every veto on values, and what a run of turns says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bitgate.tools.ab.analysis import compared, judged, outcome
from bitgate.tools.ab.conclude import known_of
from bitgate.tools.ab.known import Band, BitPass, Freeze, LedgerFacts
from bitgate.tools.ab.samples import Latencies, Turn, TurnRecord, latencies
from bitgate.tools.ab.statistics import draw_schedule
from bitgate.tools.ab.vetoes import SideFacts, Trial, vetoes
from bitgate.tools.config.model import ExpectConfig
from bitgate.tools.reasons import REASONS, verdict_of

TOKENS = 8
REQUESTS = 4
GOOD_CLOCKS = {"monotonic": 1.0, "raw": 1.0, "boot": 1.0, "wall": 1.0}
LATENCIES = Latencies(np.array([0.1]), np.array([0.01]), ordered=True)


def turn(phase: str, arm: str, number: int, rate: float = 100.0, **changes: Any) -> Turn:
    tokens = changes.pop("output_tokens", (TOKENS,) * REQUESTS)
    body = {
        "turn": number,
        "arm": arm,
        "seconds": sum(tokens) / rate,
        "clocks": GOOD_CLOCKS,
        "foreign": 0.01,
        "requests": REQUESTS,
        "failed": 0,
        "prompt_tokens": (5,) * REQUESTS,
        "output_tokens": tokens,
        **changes,
    }
    return Turn(phase, arm, TurnRecord.model_validate(body), LATENCIES)  # type: ignore[arg-type]


def turns(ratio: float = 0.9, blocks: int = 6, noise: float = 0.002, seed: int = 0) -> list[Turn]:
    """Warm-up, null run and measured blocks of a quiet machine; side a runs at `ratio` of side b."""
    rng = np.random.default_rng(seed)
    made = [turn("warm_up", arm, n) for n, arm in enumerate("abab")]
    for phase in ("null", "measured"):
        for place in draw_schedule(blocks, seed + len(phase)):
            rate = (
                100.0 * float(np.exp(rng.normal(0, noise))) * (ratio if phase == "measured" and place == "a" else 1.0)
            )
            made.append(turn(phase, place, len(made), rate))
    return made


def trial(check: str = "ab", **changes: Any) -> Trial:
    side = {"stable": {"operators": {"Linear": {"onednn_mm": 4}}}, "transport": {}, "invariant_libraries": ()}
    model = {"architecture_digest": "arch", "weights_digest": "weights"}
    a = SideFacts("rollout", "d" * 64, **side, **model)  # type: ignore[arg-type]
    b = SideFacts("baseline", "b" * 64, plays_baseline=True, **side, **model)  # type: ignore[arg-type]
    passed = BitPass(
        evidence_id="ev_1", finished_at="", side_digest="d" * 64, architecture_digest="arch", weights_digest="weights"
    )
    ledger = LedgerFacts(read=True, bit_passes=(passed,))
    base = Trial(check, a, b, turns(), TOKENS, ledger, "short", 0.9)  # type: ignore[arg-type]
    for name in ("a", "b"):
        if name in changes:
            changes[name] = replace(getattr(base, name), **changes[name])
    return replace(base, **changes)


def codes(found: Trial) -> list[str]:
    return [item.code for item in vetoes(found)]


@pytest.mark.parametrize("check", ["aa", "ab", "floor"])
def test_a_fair_run_has_no_veto(check: str) -> None:
    assert codes(trial(check)) == []


def with_turn(phase: str, **changes: Any) -> list[Turn]:
    """One turn of this phase is otherwise."""
    made = turns()
    index = next(i for i, item in enumerate(made) if item.phase == phase)
    made[index] = replace(made[index], record=made[index].record.model_copy(update=changes))
    return made


def busy(a: float, b: float) -> list[Turn]:
    return [replace(t, record=t.record.model_copy(update={"foreign": a if t.arm == "a" else b})) for t in turns()]


def unordered(turns_: list[Turn]) -> list[Turn]:
    return [replace(t, latencies=replace(LATENCIES, ordered=t.record.turn != 40)) for t in turns_]


FREEZE = Freeze(version=1, manifest="m", digests={"baseline": "b" * 64})
SLOW_BAND = FREEZE.model_copy(update={"band": Band(evidence_id="ev_9", workload="short", median=200, lowest=190)})


@pytest.mark.parametrize(
    ("code", "check", "changes"),
    [
        pytest.param("too_few_pairs", "ab", {"turns": turns(blocks=2)}, id="four pairs"),
        pytest.param(
            "order_confounded",
            "ab",
            {
                "turns": sorted(
                    turns(), key=lambda t: ("warm_up", "null", "measured").index(t.phase) * 10 + (t.arm == "a")
                )
            },
            id="baseline first, then the side",
        ),
        pytest.param("order_confounded", "ab", {"turns": [t for t in turns() if t.phase != "warm_up"]}, id="cold"),
        pytest.param(
            "order_confounded",
            "ab",
            {"turns": [t for t in turns() if t.phase != "warm_up" or t.arm == "a"]},
            id="only one side warmed up",
        ),
        pytest.param(
            "token_counts_differ", "ab", {"turns": with_turn("measured", output_tokens=(8, 8, 8, 3))}, id="stops early"
        ),
        pytest.param(
            "token_counts_differ", "ab", {"turns": with_turn("null", prompt_tokens=(5, 5, 5, 6))}, id="other prompts"
        ),
        pytest.param(
            "requests_failed",
            "ab",
            {"turns": with_turn("measured", failed=1, failures=("status 500: overloaded",))},
            id="errors for 3 %",
        ),
        pytest.param(
            "clock_jumped",
            "ab",
            {"turns": with_turn("measured", clocks={**GOOD_CLOCKS, "wall": -3599.0})},
            id="clock set",
        ),
        pytest.param(
            "clock_jumped", "ab", {"turns": with_turn("measured", clocks={**GOOD_CLOCKS, "boot": 61.0})}, id="suspended"
        ),
        pytest.param("clock_jumped", "ab", {"turns": unordered(turns())}, id="token times run backwards"),
        pytest.param(
            "throttled",
            "ab",
            {"turns": with_turn("measured", throttled=("GPU 0: hardware thermal slowdown",))},
            id="hot",
        ),
        pytest.param("device_busy", "ab", {"turns": busy(0.7, 0.7)}, id="others use most of the cores"),
        pytest.param("device_busy", "ab", {"turns": busy(0.02, 0.3)}, id="others run while the baseline does"),
        pytest.param(
            "device_busy",
            "ab",
            {"turns": with_turn("measured", gpus=({"processes": [4711]},))},
            id="a process on the GPU",
        ),
        pytest.param(
            "transport_differs",
            "ab",
            {"a": {"transport": {"NCCL_NET": "IB"}}, "b": {"transport": {"NCCL_MNNVL_ENABLE": "1"}}},
            id="RoCE and MNNVL",
        ),
        pytest.param("image_differs", "ab", {"a": {"image": "1" * 64, "container": True}}, id="another image"),
        pytest.param("weights_differ", "ab", {"b": {"architecture_digest": "larger"}}, id="another model"),
        pytest.param("weights_differ", "floor", {"b": {"weights_digest": "other"}}, id="other weights"),
        pytest.param(
            "kernels_differ",
            "floor",
            {"b": {"stable": {"operators": {"Linear": {"slow_mm": 4}}}}},
            id="a kernel nobody declared",
        ),
        pytest.param(
            "baseline_contaminated", "ab", {"b": {"invariant_modules": ("batch_invariant_ops",)}}, id="library imported"
        ),
        pytest.param(
            "baseline_contaminated",
            "floor",
            {"b": {"invariant_libraries": ("/opt/libbatch_invariant.so",)}},
            id="library preloaded",
        ),
        pytest.param(
            "baseline_contaminated",
            "ab",
            {"b": {"stable": {"batch_invariant": {"requested": False, "VLLM_BATCH_INVARIANT": True}}}},
            id="mode on",
        ),
        pytest.param(
            "baseline_contaminated",
            "ab",
            {"b": {"stable": {"batch_invariant": {"requested": "attention"}}}},
            id="one part of the mode on",
        ),
        pytest.param(
            "baseline_contaminated",
            "ab",
            {"b": {"stable": {"operators": {"Linear": {"onednn_mm in tiles of 16 rows": 4}}}}},
            id="kernels in tiles",
        ),
        pytest.param(
            "baseline_drift",
            "floor",
            {"ledger": LedgerFacts(read=True, freeze=FREEZE.model_copy(update={"digests": {"baseline": "c" * 64}}))},
            id="not the frozen digest",
        ),
        pytest.param("baseline_slowed", "floor", {"ledger": LedgerFacts(read=True, freeze=SLOW_BAND)}, id="slowed"),
        pytest.param("no_fresh_bit_pass", "floor", {"ledger": LedgerFacts(read=True)}, id="no pass"),
        pytest.param("no_fresh_bit_pass", "floor", {"ledger": LedgerFacts()}, id="ledger unknown"),
        pytest.param("not_observed", "ab", {"ledger": LedgerFacts()}, id="ledger unknown between candidates"),
        pytest.param("not_observed", "aa", {"ledger": LedgerFacts()}, id="ledger unknown in a null run"),
        pytest.param("no_fresh_bit_pass", "floor", {"a": {"digest": "e" * 64}}, id="a pass of the side as it was"),
        pytest.param("no_fresh_bit_pass", "floor", {"a": {"weights_digest": "other"}}, id="a pass of other weights"),
        pytest.param("too_good", "floor", {"ratio": 1.35}, id="faster than the tuned baseline"),
    ],
)
def test_each_veto_fires_on_what_it_is_for(code: str, check: str, changes: dict[str, Any]) -> None:
    assert code in codes(trial(check, **changes))


@pytest.mark.parametrize("known", [{}, {"read": True, "freeze": {"version": "one"}}, {"read": True, "later": 1}])
@pytest.mark.parametrize("check", ["aa", "ab", "floor"])
def test_facts_of_the_ledger_that_cannot_be_read_count_as_unread_and_no_claim_is_made(
    check: str, known: dict[str, Any]
) -> None:
    facts = known_of(known)
    assert facts == LedgerFacts(read=False)
    [code] = codes(trial(check, ledger=facts))
    assert REASONS[code].verdict in ("invalid", "inconclusive")


def test_declared_kernels_and_transports_are_no_veto() -> None:
    tiles = {"operators": {"Linear": {"onednn_mm in tiles of 16 rows": 4}}}
    expect = ExpectConfig(backends={"operators.*": "*in tiles of 16 rows"})
    assert codes(trial("floor", a={"stable": tiles, "expect": expect})) == []
    one = {"transport": {"NCCL_NET": "IB"}, "expect": ExpectConfig(transport="IB")}
    two = {"transport": {"NCCL_MNNVL_ENABLE": "1"}, "expect": ExpectConfig(transport="MNNVL")}
    assert codes(trial("ab", a=one, b=two)) == []


def test_a_declaration_for_another_kernel_does_not_cover() -> None:
    expect = ExpectConfig(backends={"operators.*": "*in tiles of 32 rows"})
    tiles = {"operators": {"Linear": {"onednn_mm in tiles of 16 rows": 4}}}
    assert codes(trial("floor", a={"stable": tiles, "expect": expect})) == ["kernels_differ"]


def test_candidates_may_differ_in_kernels_for_that_is_what_is_tried() -> None:
    assert codes(trial("ab", a={"stable": {"operators": {"Linear": {"other_mm": 4}}}})) == []


def test_candidates_may_hold_the_weights_in_another_form_and_what_cannot_be_read_is_no_difference() -> None:
    assert codes(trial("ab", b={"weights_digest": "fp8"})) == []
    assert codes(trial("floor", b={"weights_digest": None, "architecture_digest": None})) == []


def test_a_band_of_another_workload_says_nothing() -> None:
    assert "baseline_slowed" not in codes(trial("floor", ledger=LedgerFacts(read=True, freeze=SLOW_BAND), workload="x"))


def concluded(check: str, made: list[Turn], floor: float = 0.7) -> tuple[str, list[str], str]:
    measured = compared([t for t in made if t.phase == "measured"])
    null = compared([t for t in made if t.phase == "null"])
    result = outcome(measured, None) if check == "aa" else outcome(null, measured)
    reasons = judged(check, result, floor)  # type: ignore[arg-type]
    return verdict_of(reasons), [item.code for item in reasons], result.claim


@pytest.mark.parametrize(
    ("check", "ratio", "noise", "verdict", "code"),
    [
        ("floor", 0.9, 0.002, "pass", None),
        ("floor", 0.6, 0.002, "fail", "below_floor"),
        ("floor", 0.7, 0.05, "inconclusive", "floor_not_shown"),
        ("ab", 1.1, 0.002, "pass", None),
        ("ab", 0.9, 0.002, "fail", "slower"),
        ("ab", 1.0, 0.002, "inconclusive", "no_significant_change"),
        ("aa", 1.0, 0.002, "pass", None),
        ("aa", 1.1, 0.002, "inconclusive", "null_run_biased"),
    ],
)
def test_the_lower_end_and_the_detectable_effect_decide(
    check: str, ratio: float, noise: float, verdict: str, code: str | None
) -> None:
    found = concluded(check, turns(ratio, noise=noise, seed=3))
    assert (found[0], found[1]) == (verdict, [code] if code else [])


def test_a_micro_benchmarks_promise_that_comes_to_noise_is_no_significant_change() -> None:
    """Avarok atlas#754: predicted 1.27 to 1.43, real +1.0 to 1.4 %, which is the noise."""
    verdict, reasons, claim = concluded("ab", turns(1.012, noise=0.02, seed=1))
    assert (verdict, reasons, claim) == ("inconclusive", ["no_significant_change"], "no significant change")


def test_an_effect_below_the_detectable_one_is_not_claimed_although_its_interval_excludes_one() -> None:
    """The null run was noisy: a quiet measurement after it must not claim what the machine cannot show."""
    made = [t for t in turns(1.0, noise=0.05, seed=2) if t.phase != "measured"]
    made += [t for t in turns(1.01, noise=0.0005, seed=2) if t.phase == "measured"]
    measured = compared([t for t in made if t.phase == "measured"])
    assert measured is not None and not measured.interval.holds(1.0)
    assert concluded("ab", made)[2] == "no significant change"


def test_latencies_come_from_each_requests_own_tokens() -> None:
    raw = {
        "token_times": np.array([0.5, 0.6, 0.8, 1.0, 1.5]),
        "offsets": np.array([0, 3, 3, 5]),
        "submitted": np.array([0.1, 0.2, 0.4]),
    }
    found = latencies(raw)
    assert found.ttft == pytest.approx([0.4, 0.6])
    assert found.itl == pytest.approx([0.1, 0.2, 0.5])
    assert found.ordered
    assert not latencies({**raw, "token_times": np.array([0.5, 0.4, 0.8, 1.0, 1.5])}).ordered


def test_a_turn_without_tokens_gives_no_ratio() -> None:
    assert compared([turn("measured", arm, n, output_tokens=(0,) * 4) for n, arm in enumerate("abba")]) is None
