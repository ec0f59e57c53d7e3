"""The demo's acts: what an agent asks, which verdict it should get, why that is worth seeing, and the gates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from bitgate.gates.rows import GateId, Role, State
from bitgate.store.records import Verdict

MODEL: Final = "tiny"
SLICE: Final = "tiny-slice"
SIZES: Final[list[JsonValue]] = [2, 8, 17, 33]
"""Of the batch sweep: on both sides of 16 rows, where the CPU's kernels change. The default has fourteen sizes."""


@dataclass(frozen=True)
class Act:
    """One call of a tool by an agent. `tries`: a measurement of speed is asked again while it is inconclusive.

    `measures`: the need of a gate that then stays unmet, for the machine's sake and not bitgate's.
    """

    title: str
    why: str
    tool: str
    request: dict[str, JsonValue]
    expected: tuple[Verdict, ...] = ("pass",)
    role: Role = "consistency"
    tries: int = 1
    measures: str = ""


@dataclass(frozen=True)
class Ask:
    """Acts that wait for nothing of each other: the agents ask them at the same time."""

    acts: tuple[Act, ...]


@dataclass(frozen=True)
class Submit:
    gate: GateId
    role: Role = "consistency"
    expected: State | None = "passed"
    """None where a tool that the gate needs does not exist yet: what is missing is what there is to see."""


@dataclass(frozen=True)
class Propose:
    """The baseline agent proposes, with every A/B result between candidates so far as the tuning record."""


@dataclass(frozen=True)
class Sign:
    gate: GateId


Step = Ask | Submit | Propose | Sign


@dataclass(frozen=True)
class Part:
    title: str
    steps: tuple[Step, ...]


CENSUS: Final = Act(
    "What is the model made of?",
    "Every module gets an operator class, a precision and a parallel role; a name that no rule knows is not guessed.",
    "slice_model",
    {"model": MODEL, "plan_only": True},
)
CUT: Final = Act(
    "A small model that still holds every operator",
    "Cut from the checkpoint without loading it, and proved: bytes, load reports, each layer's bits.",
    "slice_model",
    {"model": MODEL},
)
BASELINE_PROVENANCE: Final = Act(
    "What does the baseline really run?",
    "Observed inside the worker: files, libraries, variables, kernels. Nothing is inferred from flags.",
    "check_provenance",
    {"side": "baseline"},
    role="baseline",
)
SIDES_PROVENANCE: Final = Act(
    "What do rollout and trainer really run?",
    "Among what is declared and must be seen: each linear in tiles of 16 rows, and attention that does not split.",
    "check_provenance",
    {"side": "rollout", "other": "trainer"},
)
NOISE: Final = Act(
    "The baseline against itself: how much is noise?",
    "Two processes of one side, in pairs of turns; the interval must hold 1. Where it does not, it is measured again.",
    "ab_benchmark",
    {"side": "baseline", "other": "baseline", "turn_s": 0.3, "blocks": 3},
    expected=("pass", "inconclusive"),
    role="baseline",
    tries=3,
    measures="noise_floor",
)
TUNING: Final = Act(
    "A knob that was tried: four sequences at once instead of all",
    "What was tried, and what won, is the tuning record of the baseline.",
    "ab_benchmark",
    {"side": "baseline", "other": "candidate", "turn_s": 0.3, "blocks": 3, "null_blocks": 2},
    expected=("pass", "inconclusive"),
    role="baseline",
)
BREAKDOWN: Final = Act(
    "Where does the baseline's time go?",
    "The winner's time by operator class.",
    "ab_benchmark",
    {"side": "baseline", "breakdown": True},
    role="baseline",
)
UNFIXED: Final = Act(
    "vLLM as it comes: each prompt alone against the same prompt in company",
    "Kernels are chosen by the number of rows and attention splits by the load, so company changes logprobs. "
    "The option is tried in this one call, so the result is on record and counts for no gate.",
    "run_compare",
    {
        "check": "batch", "side": "rollout", "model": SLICE, "batch_sizes": SIZES,
        "options": {"rollout": {"batch_invariant": False}},
    },
    expected=("fail",),
)  # fmt: skip
REPEAT: Final = Act(
    "The same request again",
    "Also in another order. Without this nothing below means anything.",
    "run_compare",
    {"check": "repeat", "side": "rollout", "model": SLICE},
)
BATCH: Final = Act(
    "Alone against in company, with batch_invariant, as the side is configured",
    "Fixed row tiles and no KV split: the batch no longer decides which bits come out.",
    "run_compare",
    {"check": "batch", "side": "rollout", "model": SLICE, "batch_sizes": SIZES},
)
PHASE: Final = Act(
    "Decode against prefill, chunked prefill and prefix cache",
    "A trainer recomputes in one prefill what was sampled token by token.",
    "run_compare",
    {"check": "phase", "side": "rollout", "model": SLICE},
)
COST: Final = Act(
    "What does being consistent cost, by operator?",
    "The rollout's time by operator class, beside the baseline's above.",
    "ab_benchmark",
    {"side": "rollout", "breakdown": True},
)
ORDINARY_TRAINER: Final = Act(
    "That rollout against a trainer that uses transformers",
    "Same weights, same tokens, other kernels: the policy that is optimised is not the one that sampled.",
    "run_compare",
    {"check": "rollout_vs_trainer", "side": "rollout", "trainer": "transformers", "model": SLICE},
    expected=("fail",),
)
THREE_LEGS: Final = Act(
    "That rollout against a trainer that calls the rollout's kernels",
    "rollout == recompute == first train forward, as fp32 bit patterns, gradients on.",
    "run_compare",
    {"check": "rollout_vs_trainer", "side": "rollout", "trainer": "trainer", "model": SLICE},
)
FIRST_OPERATOR: Final = Act(
    "Where do rollout and transformers part?",
    "Every point of every layer is hashed on both sides; the first operator with equal inputs and another output is "
    "the cause, and a script that shows it is left.",
    "bisect_layer",
    {"check": "rollout_vs_trainer", "side": "rollout", "trainer": "transformers", "model": SLICE, "sequences": 4},
    expected=("fail",),
)
CLEAN: Final = Act(
    "And rollout and the kernels' trainer?",
    "Clean means: every mandatory point of every layer observed, and equal.",
    "bisect_layer",
    {"check": "rollout_vs_trainer", "side": "rollout", "trainer": "trainer", "model": SLICE, "sequences": 4},
)
LAYOUT: Final = Act(
    "Does the trainer depend on packing, micro-batches or order?",
    "What a trainer's data loader does to a batch must not change its logprobs.",
    "run_compare",
    {"check": "layout", "side": "trainer", "model": SLICE},
)
FLOOR: Final = Act(
    "How fast is the consistent rollout against the frozen baseline?",
    "Pairs of turns in random ABBA blocks; the lower end of the interval is held against the floor of 0.70.",
    "ab_benchmark",
    {"side": "rollout", "model": MODEL, "turn_s": 0.5},
    # What speed is, is measured; and on a machine that has become busier the frozen baseline is rightly called slowed.
    expected=("pass", "fail", "inconclusive", "invalid"),
    tries=2,
)


def on_full(act: Act) -> Act:
    """The same on the model that the slice was cut from."""
    return Act(f"{act.title}: the full model", act.why, act.tool, {**act.request, "model": MODEL}, act.expected)


QUICK: Final = (
    Part("C0  Scope", (Ask((CENSUS,)), Submit("C0"))),
    Part("C2  A small model, while the baseline agent looks at its side", (
        Ask((CUT, BASELINE_PROVENANCE)), Submit("C2"),
    )),
    Part("C1  The baseline: tuned, measured, proposed by its agent, frozen by a person", (
        Ask((NOISE,)), Ask((TUNING,)), Ask((BREAKDOWN,)), Propose(), Submit("C1", "baseline", "awaiting"),
        Sign("C1"),
    )),
    Part("C3  Repeat and batch", (Ask((UNFIXED, SIDES_PROVENANCE, REPEAT, BATCH)), Submit("C3"))),
    Part("C4 and C5  Phases, the trainer, and what consistency costs", (
        Ask((PHASE, THREE_LEGS, ORDINARY_TRAINER)), Ask((COST,)), Submit("C4"), Submit("C5"),
    )),
)  # fmt: skip
"""C0 to C5, on the tiny model's slice."""

MORE: Final = (
    Part("C6  Layer by layer", (Ask((FIRST_OPERATOR, CLEAN, LAYOUT)), Submit("C6"))),
    Part("C7 and C8  Gradients and updates", (Submit("C7", expected=None), Submit("C8", expected=None))),
    Part("C9  The full model, as far as it goes", (
        Ask(tuple(map(on_full, (REPEAT, BATCH, PHASE, THREE_LEGS)))), Submit("C9", expected=None),
    )),
    Part("C10  Speed against the frozen baseline", (Ask((FLOOR,)), Submit("C10", expected=None))),
)  # fmt: skip
"""What else exists, up to C10."""
