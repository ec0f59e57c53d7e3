"""A side kept warm between the passes of one localisation: its worker follows a folder of further steps."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from pydantic import JsonValue

from bitgate.tools.bisect.observation import Observation, read_observation
from bitgate.tools.checks.execute import job_of
from bitgate.tools.config.sides import Model, Side
from bitgate.tools.config.workloads import TokenSequence
from bitgate.tools.engines.jobs import Follow, Step
from bitgate.tools.runs.context import RunContext
from bitgate.tools.runs.results import JobResult, StepResult, rank_name

POLL_S = 0.05


@dataclass
class Session:
    """One running engine. `run` submits steps and waits for every rank's answer."""

    folder: Path
    ranks: int
    ended: anyio.Event
    rounds: int = 0
    result: JobResult | None = None
    steps: dict[str, list[StepResult]] = field(default_factory=dict)

    @property
    def orders(self) -> Path:
        return self.folder / "orders"

    async def run(self, steps: Sequence[Step]) -> None:
        """Answers are kept under the steps' names. Whatever ends the engine ends this wait through the task group."""
        number, self.rounds = self.rounds, self.rounds + 1
        self._write(number, {"steps": [step.model_dump(mode="json") for step in steps]})
        for rank in range(self.ranks):
            path = self.orders / f"{number}.{rank_name(rank)}.json"
            while not path.exists():
                if self.ended.is_set():
                    # The job's own error, if any, is on its way through the task group.
                    await anyio.sleep_forever()
                await anyio.sleep(POLL_S)
            body = json.loads(path.read_text(encoding="utf-8"))
            for name, answer in body["steps"].items():
                self.steps.setdefault(name, []).append(StepResult.model_validate(answer))

    def _write(self, number: int, body: dict[str, Any]) -> None:
        target = self.orders / f"{number}.json"
        partial = target.with_suffix(".part")
        partial.write_text(json.dumps(body, allow_nan=False), encoding="utf-8")
        partial.rename(target)

    def end(self) -> None:
        self._write(self.rounds, {"end": True})

    def observed(self, step: str) -> list[Path]:
        """The folders that the ranks wrote while watching `step`."""
        return [self.folder / "out" / rank_name(rank) / "observed" / step for rank in range(self.ranks)]

    def observation(self, step: str) -> Observation:
        return read_observation([folder for folder in self.observed(step) if (folder / "points.json").exists()])

    def captures(self, step: str) -> tuple[Path, ...]:
        found = [(rank, answer.capture) for rank, answer in enumerate(self.steps[step])]
        return tuple(self.folder / "out" / rank_name(rank) / path for rank, path in found if path is not None)

    def info(self, step: str) -> dict[str, JsonValue]:
        return dict(self.steps[step][0].info)


@asynccontextmanager
async def warm(
    context: RunContext, side: Side, model: Model, sequences: Sequence[TokenSequence], timeout_s: float
) -> AsyncIterator[Session]:
    """The side's engine, up until the block ends; then its job's result is in `session.result`.

    Raises: what the job raises (WorkerError and the like), unwrapped.
    """
    folder, job = job_of(context, side, model.path, sequences, (), weight_version=model.weight_version)
    session = Session(folder, getattr(side.launcher, "ranks", 1), anyio.Event())
    session.orders.mkdir()
    job.steps = [Follow(folder=str(session.orders))]

    async def work() -> None:
        try:
            session.result = await context.run_job(side, job, timeout_s=timeout_s)
        finally:
            session.ended.set()

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            yield session
            session.end()
    except BaseExceptionGroup as several:
        raise _the_one(several) from several


def _the_one(several: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = several
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
