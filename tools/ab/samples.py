"""What a turn of load left, as types, and the figures of a side over its turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, JsonValue

Arm = Literal["a", "b"]
Phase = Literal["warm_up", "null", "measured", "profile"]


class TurnRecord(BaseModel):
    """turn-NNNNN.json of the worker, or the same made by the HTTP client."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    turn: int
    arm: Arm
    seconds: float
    clocks: dict[str, float] = Field(default={}, description="Seconds that passed by each clock")
    foreign: float | None = Field(default=None, description="Share of all cores that other processes used")
    own_cpu_s: float | None = None
    throttled: tuple[str, ...] = ()
    gpus: tuple[dict[str, JsonValue], ...] = ()
    requests: int
    failed: int
    failures: tuple[str, ...] = ()
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    operators: dict[str, JsonValue] | None = None


@dataclass(frozen=True)
class Turn:
    """One turn as it counts: `arm` is the place it had in its pair, `record` what was measured."""

    phase: Phase
    arm: Arm
    record: TurnRecord
    latencies: Latencies | None = None

    @property
    def tokens(self) -> int:
        return sum(self.record.output_tokens)

    @property
    def rate(self) -> float:
        """Output tokens a second; 0 when nothing came."""
        return self.tokens / self.record.seconds if self.record.seconds > 0 else 0.0


@dataclass(frozen=True)
class Latencies:
    """Seconds: until each request's first token, and between its tokens. `ordered`: no time ran backwards."""

    ttft: np.ndarray[Any, np.dtype[np.float64]]
    itl: np.ndarray[Any, np.dtype[np.float64]]
    ordered: bool


def latencies(raw: dict[str, Any]) -> Latencies:
    """From the raw arrays of a turn (worker/load/turns.py)."""
    times, offsets, submitted = raw["token_times"], raw["offsets"], raw["submitted"]
    starts, ends = offsets[:-1], offsets[1:]
    has = ends > starts
    first = times[starts[has]] - submitted[has]
    steps = np.diff(times)
    inner = np.ones(len(steps), bool)
    inner[starts[1:][(starts[1:] > 0) & (starts[1:] <= len(steps))] - 1] = False
    between = steps[inner] if len(steps) else steps
    ordered = bool(np.all(first >= 0) and np.all(between >= 0) and np.all(np.isfinite(times)))
    return Latencies(first, between, ordered)


def read_raw(path: Path) -> dict[str, Any]:
    from safetensors.numpy import load_file

    return load_file(path)


def read_turn(folder: Path, number: int, phase: Phase, arm: Arm) -> Turn:
    """Raises: OSError, ValueError."""
    record = TurnRecord.model_validate_json((folder / f"turn-{number:05d}.json").read_bytes())
    return Turn(phase, arm, record, latencies(read_raw(folder / f"turn-{number:05d}.safetensors")))


def of_arm(turns: Sequence[Turn], arm: Arm) -> list[Turn]:
    return [turn for turn in turns if turn.arm == arm]


def side_figures(turns: Sequence[Turn]) -> dict[str, JsonValue]:
    """Tokens a second, time to the first token and between tokens, over the turns; milliseconds."""
    rates = np.array([turn.rate for turn in turns])
    ttft = np.concatenate([t.latencies.ttft for t in turns if t.latencies] or [np.zeros(0)]) * 1e3
    itl = np.concatenate([t.latencies.itl for t in turns if t.latencies] or [np.zeros(0)]) * 1e3
    return {
        "tokens_per_s": {
            "median": _round(np.median(rates)),
            "lowest": _round(rates.min()),
            "highest": _round(rates.max()),
        },
        "ttft_ms": _quantiles(ttft),
        "itl_ms": _quantiles(itl),
        "turns": len(turns),
        "tokens": int(sum(turn.tokens for turn in turns)),
    }


def _quantiles(values: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, JsonValue]:
    if not len(values):
        return {}
    p50, p90, p99 = np.quantile(values, [0.5, 0.9, 0.99])
    return {"p50": _round(p50), "p90": _round(p90), "p99": _round(p99)}


def _round(value: Any) -> float:
    return float(f"{float(value):.5g}")
