"""What makes a speed result worthless, each a rule over values with a reason code and what was seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, Literal

from pydantic import JsonValue

from bitgate.store.records import Reason
from bitgate.tools.ab.known import LedgerFacts
from bitgate.tools.ab.samples import Arm, Turn, of_arm
from bitgate.tools.ab.statistics import FEWEST_PAIRS, balanced
from bitgate.tools.config.model import ExpectConfig
from bitgate.tools.provenance.check import flattened
from bitgate.tools.reasons import reason

Check = Literal["aa", "ab", "floor"]

KERNELS: Final = ("operators", "kernels", "attention", "model", "cache", "compilation", "parallel", "code")
"""Groups of an engine's description that say which kernels run. Options that differ are their own declaration."""
BAND_SLACK: Final = 0.05
"""A baseline may be slower than its slowest frozen turn by so much: machines differ from one day to the next."""
BUSY: Final = 0.5
BUSY_IMBALANCE: Final = 0.1
TOO_GOOD: Final = {"floor": 1.2, "ab": 5.0, "aa": 1.2}
"""A consistent stack that beats the tuned baseline by a fifth: the baseline is not tuned, or does more work."""
CLOCK_SLACK_S: Final = 0.02
CLOCK_SLACK: Final = 0.01


@dataclass(frozen=True)
class SideFacts:
    """A side as it ran, as far as fairness asks. `around`: what its workers saw loaded and set; None: not observed."""

    name: str
    digest: str
    stable: Mapping[str, JsonValue] = field(default_factory=dict)
    options: Mapping[str, JsonValue] = field(default_factory=dict)
    expect: ExpectConfig = ExpectConfig()
    plays_baseline: bool = False
    transport: Mapping[str, str] | None = None
    image: str | None = None
    container: bool = False
    invariant_modules: tuple[str, ...] = ()
    invariant_libraries: tuple[str, ...] | None = ()
    architecture_digest: str | None = None
    weights_digest: str | None = None


@dataclass(frozen=True)
class Trial:
    """Everything that a verdict on speed rests on. `b` is what `a` is measured against."""

    check: Check
    a: SideFacts
    b: SideFacts
    turns: Sequence[Turn]
    expected_tokens: int
    """Output tokens that a turn must have produced, of each request."""
    ledger: LedgerFacts = LedgerFacts()
    workload: str = ""
    ratio: float | None = None

    def phase(self, *phases: str) -> list[Turn]:
        return [turn for turn in self.turns if turn.phase in phases]


def vetoes(trial: Trial) -> list[Reason]:
    return [reason(code, detail) for rule in RULES for code, detail in rule(trial)]


Found = Iterator[tuple[str, str]]


def too_few_pairs(trial: Trial) -> Found:
    pairs = len(trial.phase("measured")) // 2
    if pairs < FEWEST_PAIRS:
        yield "too_few_pairs", f"{pairs} pairs; an interval needs {FEWEST_PAIRS}"


def order_confounded(trial: Trial) -> Found:
    for phase in ("null", "measured"):
        schedule = [turn.arm for turn in trial.phase(phase)]
        if schedule and not balanced(schedule):
            yield "order_confounded", f"{phase} turns ran as {''.join(schedule)[:40]}, not in blocks ABBA or BAAB"
    warm = {arm: len(of_arm(trial.phase("warm_up"), arm)) for arm, _ in _arms(trial)}
    if warm["a"] != warm["b"] or not warm["a"]:
        yield "order_confounded", f"warm-up turns: {warm['a']} of one side, {warm['b']} of the other"


def tokens(trial: Trial) -> Found:
    """Every turn, warm-up included: a side that stops early is faster for it."""
    turns = trial.phase("null", "measured")
    shapes = {(turn.record.prompt_tokens, turn.record.output_tokens) for turn in turns}
    short = [t for t in turns if any(count != trial.expected_tokens for count in t.record.output_tokens)]
    if short:
        worst = min(short, key=lambda t: t.tokens)
        side = trial.a.name if worst.record.arm == "a" else trial.b.name
        wanted = trial.expected_tokens * worst.record.requests
        yield (
            "token_counts_differ",
            f"side {side}, turn {worst.record.turn}: {worst.tokens} tokens, {wanted} were asked for",
        )
    elif len(shapes) > 1:
        yield "token_counts_differ", f"turns have {len(shapes)} different sets of prompt and output lengths"


def failures(trial: Trial) -> Found:
    for arm, side in _arms(trial):
        turns = [t for t in trial.turns if t.record.arm == arm]
        failed, requests = sum(t.record.failed for t in turns), sum(t.record.requests for t in turns)
        if failed:
            first = next(text for t in turns for text in t.record.failures)
            yield "requests_failed", f"side {side.name}: {failed} of {requests} requests failed, first: {first[:200]}"


def clocks(trial: Trial) -> Found:
    for turn in trial.phase("null", "measured"):
        seen = turn.record.clocks
        base = seen.get("monotonic")
        off = {
            n: v
            for n, v in seen.items()
            if base is not None and abs(v - base) > CLOCK_SLACK_S + CLOCK_SLACK * abs(base)
        }
        if off:
            name, value = next(iter(off.items()))
            yield (
                "clock_jumped",
                f"turn {turn.record.turn}: {base:.3f} s by the monotonic clock, {value:.3f} s by {name}",
            )
            return
        if turn.record.seconds <= 0 or (turn.latencies is not None and not turn.latencies.ordered):
            yield "clock_jumped", f"turn {turn.record.turn}: times run backwards"
            return


def throttling(trial: Trial) -> Found:
    for turn in trial.phase("null", "measured"):
        if turn.record.throttled:
            yield "throttled", f"turn {turn.record.turn}: {', '.join(turn.record.throttled)}"
            return


def other_processes(trial: Trial) -> Found:
    turns = trial.phase("measured")
    pids = sorted({pid for t in turns for gpu in t.record.gpus for pid in _pids(gpu)})
    if pids:
        yield "device_busy", f"other processes on the GPU: {', '.join(map(str, pids[:8]))}"
    shares = {arm: [f for t in turns if t.arm == arm and (f := t.record.foreign) is not None] for arm in ("a", "b")}
    if not shares["a"] or not shares["b"]:
        return
    means = {arm: sum(values) / len(values) for arm, values in shares.items()}
    if max(means.values()) > BUSY or abs(means["a"] - means["b"]) > BUSY_IMBALANCE:
        shown = f"{means['a']:.0%} of the cores while {trial.a.name} ran, {means['b']:.0%} while {trial.b.name} ran"
        yield "device_busy", f"other processes used {shown}"


def _pids(gpu: Mapping[str, JsonValue]) -> list[int]:
    listed = gpu.get("processes")
    return [pid for pid in listed if isinstance(pid, int)] if isinstance(listed, list) else []


def transport(trial: Trial) -> Found:
    one, two = trial.a, trial.b
    if one.transport is None or two.transport is None or one.transport == two.transport:
        return
    declared = one.expect.transport is not None and two.expect.transport is not None
    if declared and one.expect.transport != two.expect.transport:
        return
    names = sorted(n for n in {*one.transport, *two.transport} if one.transport.get(n) != two.transport.get(n))
    shown = "; ".join(
        f"{n}: {one.transport.get(n, '(unset)')} and {two.transport.get(n, '(unset)')}" for n in names[:4]
    )
    yield "transport_differs", f"{one.name} and {two.name}: {shown}"


def image(trial: Trial) -> Found:
    one, two = trial.a, trial.b
    if (one.image, one.container) != (two.image, two.container):
        shown = [s.image or ("a container without a digest" if s.container else "no container") for s in (one, two)]
        yield "image_differs", f"{one.name}: {shown[0]}; {two.name}: {shown[1]}"


def model(trial: Trial) -> Found:
    """Another model has another speed; candidates may hold the weights in another form, as a quantisation does."""
    one, two = trial.a, trial.b
    pairs = [("architecture", one.architecture_digest, two.architecture_digest)]
    if trial.check != "ab":
        pairs.append(("weights", one.weights_digest, two.weights_digest))
    for what, left, right in pairs:
        if left and right and left != right:
            yield "weights_differ", f"{what}: {one.name} has {left[:12]}, {two.name} has {right[:12]}"


def kernels(trial: Trial) -> Found:
    """Against the baseline, every kernel that differs must be one that an expectation names."""
    if trial.check != "floor":
        return
    one, two = kernel_facts(trial.a), kernel_facts(trial.b)
    differ = [n for n in sorted({*one, *two}) if one.get(n) != two.get(n)]
    hidden = [
        n for n in differ if not _is_declared(n, one.get(n), trial.a) and not _is_declared(n, two.get(n), trial.b)
    ]
    if hidden:
        first = hidden[0]
        more = f" and {len(hidden) - 1} more" if len(hidden) > 1 else ""
        yield "kernels_differ", f"{first}: {one.get(first)} and {two.get(first)}{more}; no expect.backends names them"


def kernel_facts(side: SideFacts) -> dict[str, str]:
    return flattened({name: side.stable[name] for name in KERNELS if name in side.stable})


def _is_declared(name: str, value: str | None, side: SideFacts) -> bool:
    backends = side.expect.backends.items()
    return any(fnmatchcase(name, key) and fnmatchcase(value or "", wanted) for key, wanted in backends)


def contaminated(trial: Trial) -> Found:
    for side in {s.name: s for s in (trial.a, trial.b) if s.plays_baseline}.values():
        state = side.stable.get("batch_invariant")
        active = (
            [k for k, v in state.items() if v and k in ("requested", "VLLM_BATCH_INVARIANT")]
            if isinstance(state, dict)
            else []
        )
        tiles = [name for name, text in kernel_facts(side).items() if "in tiles of" in text]
        found = [*active, *tiles, *side.invariant_modules, *(side.invariant_libraries or ())]
        if found:
            yield "baseline_contaminated", f"side {side.name}: batch-invariant code is active: {', '.join(found[:4])}"


def unread_ledger(trial: Trial) -> Found:
    """Whether a baseline is frozen decides what may be claimed of two candidates too."""
    if not trial.ledger.read and trial.check != "floor":
        yield "not_observed", "what the ledger knows was not handed on, or cannot be read: is a baseline frozen?"


def drift(trial: Trial) -> Found:
    if trial.ledger.freeze is None:
        return
    for side in {s.name: s for s in (trial.a, trial.b)}.values():
        frozen = trial.ledger.freeze.digests.get(side.name)
        if frozen is not None and frozen != side.digest:
            shown = f"{side.digest[:12]} ran, {frozen[:12]} is frozen (version {trial.ledger.freeze.version})"
            yield "baseline_drift", f"side {side.name}: {shown}"


def slowed(trial: Trial) -> Found:
    freeze = trial.ledger.freeze
    if freeze is None or freeze.band is None or freeze.band.workload != trial.workload:
        return
    for arm, side in _arms(trial):
        if side.name not in freeze.digests:
            continue
        rates = sorted(turn.rate for turn in trial.phase("measured") if turn.arm == arm)
        limit = freeze.band.lowest * (1 - BAND_SLACK)
        if rates and rates[len(rates) // 2] < limit:
            shown = f"{rates[len(rates) // 2]:.4g} tokens/s, its frozen band begins at {freeze.band.lowest:.4g}"
            yield "baseline_slowed", f"side {side.name}: {shown} ({freeze.band.evidence_id})"


def fresh_bits(trial: Trial) -> Found:
    if trial.check != "floor":
        return
    side = trial.a
    wanted = (side.digest, side.architecture_digest, side.weights_digest)
    if any((p.side_digest, p.architecture_digest, p.weights_digest) == wanted for p in trial.ledger.bit_passes):
        return
    if not trial.ledger.read:
        yield "no_fresh_bit_pass", "the ledger was not read for this run, so no bit-pass is known"
        return
    known = (
        f"{len(trial.ledger.bit_passes)} passes are on record, none of them" if trial.ledger.bit_passes else "no pass"
    )
    yield "no_fresh_bit_pass", f"{known} for side {side.name} as it ran ({side.digest[:12]}) on this model"


def too_good(trial: Trial) -> Found:
    limit = TOO_GOOD[trial.check]
    if trial.ratio is not None and trial.ratio > limit:
        yield (
            "too_good",
            f"{trial.a.name} is {trial.ratio:.3g} times as fast as {trial.b.name}; believed is up to {limit:g}",
        )


def _arms(trial: Trial) -> tuple[tuple[Arm, SideFacts], tuple[Arm, SideFacts]]:
    return ("a", trial.a), ("b", trial.b)


RULES: Final[tuple[Callable[[Trial], Found], ...]] = (
    too_few_pairs, order_confounded, tokens, failures, clocks, throttling, other_processes, transport, image, model,
    kernels, contaminated, unread_ledger, drift, slowed, fresh_bits, too_good,
)  # fmt: skip
"""To add a veto: a rule here, and a row in the table of reasons."""
