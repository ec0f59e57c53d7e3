"""Running the legs of a plan watched: the step as it is, then with every point hashed, then around one operator."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bitgate.store.records import Grade
from bitgate.tools.bisect.observation import Observation
from bitgate.tools.bisect.pairs import Leg, Pair, Plan, Start, Watched
from bitgate.tools.bisect.session import Session, warm
from bitgate.tools.captures.read import open_capture
from bitgate.tools.captures.rows import read_column
from bitgate.tools.checks.plan import together
from bitgate.tools.checks.responses import with_responses
from bitgate.tools.config.sides import Model, Side
from bitgate.tools.config.workloads import TokenSequence, Workload
from bitgate.tools.engines.jobs import Generate, Target
from bitgate.tools.runs.results import JobResult

if TYPE_CHECKING:
    from bitgate.tools.runs.context import RunContext

SAMPLED = "sampled"


@dataclass
class Watch:
    """Engines kept warm by the name of their start, and what each leg left."""

    context: RunContext
    sides: Mapping[str, Side]
    model: Model
    plan: Plan
    sessions: dict[str, Session] = field(default_factory=dict)
    effects: dict[str, str] = field(default_factory=dict)
    """Leg -> why watching it, or running it again, was not without effect."""
    unstable: dict[str, str] = field(default_factory=dict)
    observations: dict[str, Observation] = field(default_factory=dict)

    def results(self) -> dict[str, JobResult]:
        return {name: s.result for name, s in self.sessions.items() if s.result is not None}

    def grade(self) -> Grade:
        """`observed` when every step ran under bitgate's eyes."""
        steps = [answer for session in self.sessions.values() for found in session.steps.values() for answer in found]
        return "observed" if {step.info.get("grade", "observed") for step in steps} == {"observed"} else "attested"

    def side_of(self, start: Start) -> Side:
        side = self.sides[start.side]
        return replace(side, options={**side.options, **start.options}) if start.options else side

    async def hash(self, leg: Leg) -> Observation:
        """The leg's points, hashed once; its logprobs with and without watching must be the same."""
        if leg.step.name in self.observations:
            return self.observations[leg.step.name]
        session = self.sessions[leg.engine]
        watched = leg.hashing()
        await session.run([leg.step])
        await session.run([watched])
        plain, seen = (_logprobs(session.captures(name)) for name in (leg.step.name, watched.name))
        if not np.array_equal(plain, seen):
            await self._blame(session, leg, plain)
        found = session.observation(watched.name)
        self.observations[leg.step.name] = found
        return found

    async def _blame(self, session: Session, leg: Leg, plain: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> None:
        """Other logprobs when watched: either watching changed them, or they change by themselves."""
        again: Watched = leg.step.model_copy(update={"name": f"{leg.step.name}.again"})
        await session.run([again])
        if np.array_equal(plain, _logprobs(session.captures(again.name))):
            self.effects[leg.name] = "its logprobs are others while its points are watched"
        else:
            self.unstable[leg.name] = "the same step twice gives other logprobs"

    async def record(self, pair: Pair, target: Target) -> tuple[Path | None, Path | None]:
        """The folders with the operators of both legs around the target; None where nothing could be recorded."""
        found: list[Path | None] = []
        for leg in (pair.a, pair.b):
            session, step = self.sessions[leg.engine], leg.recording(target)
            await session.run([step])
            folders = [f for f in session.observed(step.name) if (f / "program0.json").exists()]
            found.append(folders[0] if folders else None)
        return found[0], found[1]


@asynccontextmanager
async def watching(
    context: RunContext, sides: Mapping[str, Side], model: Model, plan: Plan, sequences: Sequence[TokenSequence],
    workload: Workload, *, sample: bool, timeout_s: float,
) -> AsyncIterator[Watch]:  # fmt: skip
    """Starts the engines one after the other. With `sample` the first one samples what all others are given."""
    watch = Watch(context, sides, model, plan)
    given = sequences
    async with AsyncExitStack() as stack:
        for number, start in enumerate(plan.starts):
            side = watch.side_of(start)
            await context.progress(number, len(plan.starts) + 3, f"starting {start.name}")
            session = await stack.enter_async_context(warm(context, side, model, given, timeout_s))
            watch.sessions[start.name] = session
            # Up before the next one starts: loading several models at once only slows each.
            await session.run([])
            if sample and number == 0:
                order = together(range(len(given)))
                step = Generate(name=SAMPLED, groups=order, max_tokens=workload.max_tokens, sampling=workload.sampling)
                await session.run([step])
                given = with_responses(given, session.captures(SAMPLED))
        yield watch


def _logprobs(folders: Sequence[Path]) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    rows = open_capture(folders).rows
    with rows.open() as opened:
        sequence, position = (read_column(opened, n, 0, rows.count) for n in ("sequence", "position"))
        bits = np.ascontiguousarray(read_column(opened, "logprob", 0, rows.count)).view(np.uint32)
    made: np.ndarray[tuple[int], np.dtype[np.uint32]] = bits[np.lexsort((position, sequence))]
    return made
