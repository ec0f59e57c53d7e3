"""Paces progress for clients: at most five notes a second, always increasing, and a beat while nothing moves."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from bitgate.server.answers import Progress
from bitgate.server.sanitise import clean_text, shorten

OnProgress = Callable[[float, float | None, str], Awaitable[None]]

MIN_GAP_S: Final = 0.2
BEAT_S: Final = 10.0
_STEP: Final = 1e-6


@dataclass
class Pacer:
    """Hands on what is worth sending. A note that comes too early is dropped; the answer itself carries the end."""

    send: OnProgress
    clock: Callable[[], float] = time.monotonic
    last: Progress | None = None
    _sent_at: float = field(default=-1e9)
    _sent: float = field(default=-1.0)

    async def __call__(self, done: float, total: float | None, message: str) -> None:
        now = Progress(done=done, total=total, message=shorten(clean_text(message), 300))
        changed, self.last = now != self.last, now
        gap = self.clock() - self._sent_at
        if gap < MIN_GAP_S or not (changed or gap >= BEAT_S):
            return
        # The protocol wants every value above the last one.
        value = done if done > self._sent else self._sent + _STEP
        self._sent_at, self._sent = self.clock(), value
        await self.send(value, total, now.message)
