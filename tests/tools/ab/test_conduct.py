"""How often the conductor and a side that waits look: each look is taken from the side that works."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
from safetensors.numpy import save_file

from bitgate.tools.ab.conduct import Call, LoadPlan, WorkerSide, conduct
from bitgate.tools.engines.jobs import Sampling
from bitgate.tools.engines.worker.files import write_json
from bitgate.tools.engines.worker.load.turns import FOLDER, LONGEST_LOOK_S, LOOK_S, arrays, pause_after, totals
from bitgate.tools.runs.results import rank_name


def test_the_longer_a_wait_the_rarer_the_looks_and_none_comes_much_too_late() -> None:
    waited, looks = 0.0, 0
    while waited < 1.0:
        assert LOOK_S <= pause_after(waited) <= max(LOOK_S, waited / 4)
        waited, looks = waited + pause_after(waited), looks + 1
    assert looks <= 20
    assert pause_after(3600.0) == LONGEST_LOOK_S


@dataclass(eq=False)
class Timed:
    """A side whose turns took so many seconds; notes what was expected of each."""

    samples: Path
    seconds: list[float]
    expected: list[float] = field(default_factory=list)

    async def turn(self, number: int, call: Call, rounds: int, of: int, expected_s: float) -> None:
        self.expected.append(expected_s)
        sample(self.samples, number, self.seconds.pop(0))

    async def end(self, number: int) -> None:
        pass


def sample(folder: Path, number: int, seconds: float) -> None:
    body = {"turn": number, "arm": "a", "seconds": seconds, **totals([])}
    save_file(arrays([]), folder / f"turn-{number:05d}.safetensors")
    write_json(folder / f"turn-{number:05d}.json", body)


def test_a_turn_is_expected_to_take_as_long_as_the_shortest_before_it_and_a_cold_one_says_nothing(
    tmp_path: Path,
) -> None:
    side = Timed(tmp_path, [60.0, 2.0, 3.0, 1.0, 2.0])
    calls = [Call("warm_up", "a", "a"), *[Call("measured", "a", "a")] * 4]
    anyio.run(conduct, {"a": side}, calls, 0.0)
    assert side.expected == [0.0, 0.0, 2.0, 2.0, 1.0]


def test_nobody_looks_before_a_turn_can_be_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sample is there at once, and is found after the wait for what is expected, with the first look."""
    folder, turns = tmp_path / "out" / rank_name(0) / FOLDER, tmp_path / "turns"
    folder.mkdir(parents=True)
    turns.mkdir()
    sample(folder, 3, 1.0)
    side = WorkerSide(None, None, None, LoadPlan((), 1, Sampling()), "a", turns)  # type: ignore[arg-type]
    side.placed(tmp_path)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(anyio, "sleep", sleep)
    anyio.run(side.turn, 3, Call("measured", "a", "a"), 1, 4, 10.0)
    assert slept == [10.0]
    assert (turns / "00003.json").exists()
