"""What the worker asks of an engine, and what an engine gives back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from .sequences import Sequences

Step = Mapping[str, Any]
"""One step of the job as JSON has it (bitgate.tools.engines.jobs): `kind`, `name`, `groups`, and what the kind adds."""

PREFILL, DECODE = 0, 1


class EngineError(Exception):
    """An engine cannot do what was asked; `code` is a row of the run error table, the text says what to do."""

    def __init__(self, code: str, message: str) -> None:
        self.code, self.message = code, message
        super().__init__(message)


@dataclass(frozen=True)
class StepRows:
    """What a step computed.

    columns: one array a column of the capture format (`logprob` may be a torch tensor that still has its graph).
    info: what was exercised; the checks count `cached_tokens`, `prefill_chunks`, `preemptions`, `graph_replays` and
        `groups`.
    computation: the arguments of `CaptureWriter.computed`: how the logprobs came about.
    sampling: the parameters really used; None when the tokens were given.
    logprobs_mode, temperature: what the recorded numbers are.
    grade: `observed` when the engine ran under our eyes, `attested` when somebody else's code says so.
    """

    columns: dict[str, Any]
    info: dict[str, Any]
    computation: dict[str, Any]
    sampling: dict[str, Any] | None = None
    logprobs_mode: str = "raw_logprobs"
    temperature: float = 1.0
    grade: str = "observed"


def forward_computation(columns: Mapping[str, Any], passes: int, train: bool, seconds: float) -> dict[str, Any]:
    """`StepRows.computation` of one forward over given tokens; `train`: with its graph and a backward."""
    return {
        "kind": "forward",
        "passes": passes,
        "mode": "train" if train else "eval",
        "grad": train,
        "backward": train,
        "seconds": seconds,
        "tokens": len(columns["sequence"]),
    }


@dataclass(frozen=True)
class Perturbation:
    """One resident weight changed by a few ulps, and the way back."""

    weight: str
    index: int
    before: float
    after: float
    undo: Callable[[], None] = field(repr=False)
    ulps: int = 1

    def info(self) -> dict[str, Any]:
        return {
            "weight": self.weight, "index": self.index, "before": _figure(self.before), "after": _figure(self.after),
            "ulps": self.ulps,
        }  # fmt: skip


def _figure(value: float) -> float | str:
    """A checkpoint may hold NaN, which JSON does not."""
    return value if math.isfinite(value) else str(value)


class Engine(Protocol):
    """One engine with one model, built as `ENGINE(model_path, options, job)`."""

    def describe(self) -> dict[str, dict[str, Any]]:
        """`{"stable", "volatile"}`: what was really chosen. Stable values enter the side digest."""
        ...

    def weights(self) -> Iterator[tuple[str, Any]]:
        """Resident weights under the checkpoint's own names: a tensor, or a text that says why it cannot be read."""
        ...

    def run(self, step: Step, sequences: Sequences) -> StepRows:
        """Execute one step.

        Raises:
            EngineError: `unsupported_step` and the like, with words that name the option or the step.
        """
        ...

    def perturb(self, ulps: int) -> Perturbation:
        """Change one resident weight by so many ulps."""
        ...

    def close(self) -> None: ...


def wanted(step: Step) -> list[int]:
    """The sequences that leave rows, in submission order: those of the groups without the company."""
    company = set(step.get("company", ()))
    return [index for group in step["groups"] for index in group if index not in company]
