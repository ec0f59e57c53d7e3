"""The plan of a check: jobs to run on a side, and the views of the same rows that must be equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from bitgate.tools.config.workloads import TokenSequence
from bitgate.tools.engines.jobs import Step


@dataclass(frozen=True)
class StepRef:
    """A step of a planned job, by their names."""

    job: str
    step: str


@dataclass(frozen=True)
class Proof:
    """What a step's info must show before its axis counts as exercised: `info[key] >= least`.

    The step is the view's own, or `step` where the reference is what exercises the axis.
    """

    key: str
    least: int
    otherwise: str
    step: StepRef | None = None


@dataclass(frozen=True)
class View:
    """Rows of `step` that must equal the same rows of `reference`, bit for bit; all of them unless `partial`."""

    label: str
    reference: StepRef
    step: StepRef
    axes: tuple[str, ...] = ()
    proof: Proof | None = None
    partial: bool = False


@dataclass(frozen=True)
class PlannedJob:
    """One start of the side's engine. `options` are laid over the side's, to reach the state that `axis` names."""

    name: str
    steps: tuple[Step, ...]
    options: Mapping[str, JsonValue] = field(default_factory=dict)
    axis: str | None = None


@dataclass(frozen=True)
class CheckPlan:
    """Jobs share `sequences`. `axes` must each be exercised by a view, be not applicable, or limit the verdict."""

    sequences: tuple[TokenSequence, ...]
    jobs: tuple[PlannedJob, ...]
    views: tuple[View, ...]
    axes: tuple[str, ...] = ()
    not_applicable: Mapping[str, str] = field(default_factory=dict)
    unreachable: Mapping[str, str] = field(default_factory=dict)


def alone(count: int) -> list[list[int]]:
    """Groups in which every sequence is by itself."""
    return [[i] for i in range(count)]


def together(order: Sequence[int]) -> list[list[int]]:
    """One group with all sequences, in this order."""
    return [list(order)]
