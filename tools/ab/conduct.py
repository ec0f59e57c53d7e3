"""Runs turns: both sides started once and resident, one at work at a time, called by a file or over HTTP."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import anyio
from anyio.to_thread import run_sync
from pydantic import ValidationError

from bitgate.tools.ab.samples import Arm, Phase, Turn, read_turn
from bitgate.tools.ab.statistics import draw_roles, draw_schedule
from bitgate.tools.checks.execute import run_steps
from bitgate.tools.config.sides import Model, Side
from bitgate.tools.config.workloads import TokenSequence
from bitgate.tools.engines.jobs import Load, Sampling
from bitgate.tools.engines.worker.files import write_json
from bitgate.tools.engines.worker.load.turns import FOLDER, LOOK_S, pause_after
from bitgate.tools.errors import WorkerError
from bitgate.tools.runs.results import JobResult, rank_name

if TYPE_CHECKING:
    from bitgate.tools.runs.context import RunContext, SideToRun

MOST_ROUNDS: Final = 50


@dataclass(frozen=True)
class Call:
    """One turn to be run: `engine` works, `place` is what it stands for in its pair (they differ in a null run)."""

    phase: Phase
    engine: Arm
    place: Arm


def planned(blocks: int, null_blocks: int, warm_up: int, seed: int, *, one_side: bool = False) -> list[Call]:
    """Warm-up of both sides in turn, the null run of side b against itself, then the blocks that are measured.

    `one_side`: both engines are the same side, and stand for each other in half of the blocks.
    """
    calls = [Call("warm_up", arm, arm) for _ in range(warm_up) for arm in _ARMS]
    calls += [Call("null", "b", _arm(place)) for place in draw_schedule(null_blocks, seed + 1)]
    swapped = draw_roles(blocks, seed) if one_side else (False,) * blocks
    places = [_arm(place) for place in draw_schedule(blocks, seed)]
    engines = [_other(place) if swapped[number // 4] else place for number, place in enumerate(places)]
    return calls + [Call("measured", engine, place) for engine, place in zip(engines, places, strict=True)]


_ARMS: Final[tuple[Arm, Arm]] = ("a", "b")
_ALONE: Final = ("warm_up", "profile")
"""Phases whose turns are one round, and whose time says nothing of other turns."""


def _arm(letter: str) -> Arm:
    return "a" if letter == "a" else "b"


def _other(arm: Arm) -> Arm:
    return "b" if arm == "a" else "a"


@dataclass(frozen=True)
class LoadPlan:
    """What every turn serves."""

    sequences: tuple[TokenSequence, ...]
    max_tokens: int
    sampling: Sampling
    concurrency: int | None = None


class Server(Protocol):
    """One side, started: serves a turn and leaves its sample in `samples`."""

    @property
    def samples(self) -> Path: ...

    async def turn(self, number: int, call: Call, rounds: int, of: int, expected_s: float) -> None: ...

    async def end(self, number: int) -> None: ...


@dataclass
class Score:
    """`on_turn` hears after each turn how many are done."""

    turns: list[Turn] = field(default_factory=list)
    rounds: int = 1


async def conduct(
    servers: dict[Arm, Server],
    calls: Sequence[Call],
    turn_s: float,
    on_turn: Callable[[int, Call], Awaitable[None]] | None = None,
) -> Score:
    """Every call in order, never two at once. The warm-up shows how many rounds make a turn long enough to be timed.

    Raises: WorkerError `bad_result` when a side left a sample that cannot be read.
    """
    score, shortest = Score(), dict[Server, float]()
    for number, call in enumerate(calls):
        if call.phase != "warm_up" and score.rounds == 1:
            score.rounds = rounds_for([turn for turn in score.turns if turn.phase == "warm_up"], turn_s)
        server = servers[call.engine]
        rounds = 1 if call.phase in _ALONE else score.rounds
        await server.turn(number, call, rounds, len(calls), 0.0 if call.phase in _ALONE else shortest.get(server, 0.0))
        score.turns.append(turn := await run_sync(_sample, server.samples, number, call))
        if call.phase not in _ALONE:
            shortest[server] = min(turn.record.seconds, shortest.get(server, turn.record.seconds))
        if on_turn is not None:
            await on_turn(number + 1, call)
    for server in dict.fromkeys(servers.values()):
        await server.end(len(calls))
    return score


def rounds_for(warm_up: Sequence[Turn], turn_s: float) -> int:
    """Equal for both sides: so many that the faster one's turn takes `turn_s`."""
    if not warm_up:
        return 1
    shortest = min(turn.record.seconds for turn in warm_up)
    return max(1, min(MOST_ROUNDS, round(turn_s / max(shortest, 1e-3))))


def _sample(folder: Path, number: int, call: Call) -> Turn:
    try:
        return read_turn(folder, number, call.phase, call.place)
    except (OSError, ValueError, ValidationError, KeyError) as error:
        raise WorkerError("bad_result", f"turn {number} left no readable sample: {type(error).__name__}") from error


@dataclass(eq=False)
class WorkerSide:
    """A side whose engine bitgate starts. All ranks wait for the same file; rank 0's sample counts."""

    context: RunContext
    side: Side
    model: Model
    plan: LoadPlan
    arm: Arm
    turns: Path
    result: JobResult | None = None
    _folder: Path | None = None

    @property
    def samples(self) -> Path:
        assert self._folder is not None, "the side was not started"
        return self._folder / "out" / rank_name(0) / FOLDER

    async def run(self) -> None:
        """Starts the engine and stays until its job has ended."""
        step = Load(
            groups=[list(range(len(self.plan.sequences)))],
            max_tokens=self.plan.max_tokens,
            sampling=self.plan.sampling,
            concurrency=self.plan.concurrency,
            turns=str(self.turns),
            arm=self.arm,
        )
        timeout = self.context.project.policy.run_timeout
        watched = _Watched(self.context, self)
        self.result = await run_steps(watched, self.side, self.model, self.plan.sequences, [step], timeout)

    async def up(self) -> None:
        """Waits until rank 0's engine is up, which then makes the folder of its samples."""
        while self._folder is None or not self.samples.exists():  # noqa: ASYNC110
            await anyio.sleep(LOOK_S)

    async def turn(self, number: int, call: Call, rounds: int, of: int, expected_s: float) -> None:
        body: dict[str, object] = {"arm": self.arm, "rounds": rounds, "of": of, "profile": call.phase == "profile"}
        await run_sync(write_call, self.turns, number, body)
        # A worker may be on another host: there is nothing to wait on but the file, and looking for it costs the turn.
        # When its shortest turn is over, this one is too, or soon; then its threads come to rest, which nobody times.
        await anyio.sleep(expected_s)
        sample, began = self.samples / f"turn-{number:05d}.json", time.monotonic()
        while not sample.exists():  # noqa: ASYNC110
            await anyio.sleep(pause_after(time.monotonic() - began))

    async def end(self, number: int) -> None:
        if not (self.turns / f"{number:05d}.json").exists():
            await run_sync(write_call, self.turns, number, {"arm": "end", "of": number})

    def placed(self, folder: Path) -> None:
        self._folder = folder


def write_call(folder: Path, number: int, body: dict[str, object]) -> None:
    write_json(folder / f"{number:05d}.json", body, durable=False)


class _Watched:
    """The run's context, which also tells a side where its job's folder is."""

    def __init__(self, context: RunContext, owner: WorkerSide) -> None:
        self._context, self._owner = context, owner
        self.run_id, self.folder = context.run_id, context.folder
        self.project, self.artifacts = context.project, context.artifacts
        self.progress, self.run_job = context.progress, context.run_job
        self.known = context.known

    def new_job(self, side: SideToRun) -> Path:
        folder = self._context.new_job(side)
        self._owner.placed(folder)
        return folder


async def run_together(
    workers: Sequence[WorkerSide],
    servers: dict[Arm, Server],
    calls: Sequence[Call],
    turn_s: float,
    on_turn: Callable[[int, Call], Awaitable[None]] | None = None,
) -> Score:
    """The sides' jobs beside the conductor: when one of them fails, all end and its error is raised."""
    score = Score()
    try:
        async with anyio.create_task_group() as group:
            for worker in workers:
                group.start_soon(worker.run)
                # One after the other: an engine sizes its cache by the memory that is free, and takes another one's
                # growth on the same device for its own.
                await worker.up()
            score = await conduct(servers, calls, turn_s, on_turn)
    except ExceptionGroup as failed:
        raise _first(failed) from failed
    return score


def _first(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
