from __future__ import annotations

import pytest

from bitgate.server.progress import Pacer

pytestmark = pytest.mark.anyio

Sent = list[tuple[float, float | None, str]]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def paced(notes: list[tuple[float, float, str]], gap: float) -> Sent:
    sent: Sent = []
    clock = Clock()

    async def send(done: float, total: float | None, message: str) -> None:
        sent.append((done, total, message))

    pacer = Pacer(send, clock)
    for note in notes:
        clock.now += gap
        await pacer(*note)
    return sent


async def test_at_most_five_notes_a_second_are_sent() -> None:
    sent = await paced([(step, 1000, "x") for step in range(1000)], gap=0.01)

    assert 40 <= len(sent) <= 50


async def test_values_always_increase_even_when_the_run_goes_back() -> None:
    sent = await paced([(5, 10, "a"), (3, 10, "b"), (3, 10, "c"), (6, 10, "d")], gap=1)
    values = [value for value, _, _ in sent]

    assert values == sorted(set(values)) and len(values) == 4


async def test_nothing_new_is_not_repeated_but_for_a_beat() -> None:
    sent = await paced([(1, 10, "same")] * 30, gap=1)

    assert len(sent) == 3


async def test_messages_are_sanitised_and_short() -> None:
    [(_, _, message)] = await paced([(0, 1, "\udce9" + "x" * 1000)], gap=1)

    assert message.startswith("\ufffdx") and len(message) == 300
