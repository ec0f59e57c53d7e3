"""Serves load when it is called for: one file a turn in, one sample a turn out; between turns it only waits."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from ..engine import Engine, EngineError, Step
from ..files import write_json
from ..processes import pause
from ..provenance.devices import transport
from ..provenance.process import image, mapped_files
from ..sequences import Sequences
from .machine import Machine

LOOK_S = 0.02
LONGEST_LOOK_S = 0.25
FOLDER = "load"


@dataclass
class Served:
    """One request as it went: seconds since the turn began, and when each of its tokens came."""

    sequence: int
    prompt_tokens: int
    submitted: float
    token_times: list[float] = field(default_factory=list)
    finished: float = 0.0
    failed: str | None = None


@dataclass(frozen=True)
class Work:
    """What a turn asks for."""

    prompts: list[tuple[int, list[int]]]
    max_tokens: int
    sampling: dict[str, Any]
    concurrency: int


def serve_turns(
    engine: Engine, sequences: Sequences, step: Step, folder: str, progress: Callable[[float, str], None]
) -> dict[str, Any]:
    """Until the end is called. Returns how many turns were served, and what is loaded around the engine.

    Raises: EngineError `unsupported_step` when the engine serves no load.
    """
    serve = getattr(engine, "serve", None)
    if serve is None:
        raise EngineError(
            "unsupported_step",
            f"step {step['name']}: this engine generates nothing, so that its speed cannot be measured",
        )
    order = [index for group in step["groups"] for index in group]
    prompts = [(index, sequences.prompt(index)) for index in order]
    work = Work(prompts, step["max_tokens"], dict(step["sampling"]), step.get("concurrency") or len(prompts))
    out = os.path.join(folder, FOLDER)
    os.makedirs(out, exist_ok=True)
    number = served = 0
    while (call := _next(step["turns"], number))["arm"] != "end":
        if call["arm"] == step["arm"]:
            progress(min(0.99, number / max(call["of"], 1)), f"turn {number + 1} of {call['of']}")
            _turn(serve, work, number, call, out)
            served += 1
        number += 1
    return {"turns": served, "around": around()}


def _next(folder: str, number: int) -> dict[str, Any]:
    """The call of this number; waits for it. The guard ends this process when the run is over without an end."""
    path, began = os.path.join(folder, f"{number:05d}.json"), time.monotonic()
    while not os.path.exists(path):
        pause(pause_after(time.monotonic() - began))
    with open(path, encoding="utf-8") as file:
        call: dict[str, Any] = json.load(file)
    return call


def pause_after(waited_s: float) -> float:
    """Seconds until the next look, a quarter of those waited so far: each look is taken from the side that works."""
    return min(LONGEST_LOOK_S, max(LOOK_S, waited_s / 4))


def _turn(serve: Callable[..., Any], work: Work, number: int, call: dict[str, Any], out: str) -> None:
    machine = Machine()
    if call.get("profile"):
        from .operators import profiled

        (seconds, requests), operators = profiled(lambda: _rounds(serve, work, call["rounds"]))
    else:
        (seconds, requests), operators = _rounds(serve, work, call["rounds"]), None
    seen = machine.since()
    name = f"turn-{number:05d}"
    save_file(arrays(requests), os.path.join(out, f"{name}.safetensors"))
    body = {"turn": number, "arm": call["arm"], "seconds": seconds, **seen, **totals(requests), "operators": operators}
    rest()
    write_json(os.path.join(out, f"{name}.json"), body, durable=False)


def rest(limit_s: float = 1.0) -> None:
    """Until this process's threads sleep: OpenMP's spin on after their work (KMP_BLOCKTIME, 200 ms), and the other
    side's turn would pay for it."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        used = time.process_time()
        pause(LOOK_S)
        if time.process_time() - used < LOOK_S / 10:
            return


def _rounds(serve: Callable[..., Any], work: Work, rounds: int) -> tuple[float, list[Served]]:
    """The same load so many times; the seconds of each are added up, what lies between them is not counted."""
    seconds, requests = 0.0, []
    for _ in range(rounds):
        taken, served = serve(work)
        seconds += taken
        requests += served
    return seconds, requests


def totals(requests: list[Served]) -> dict[str, Any]:
    failed = [request.failed for request in requests if request.failed]
    return {
        "requests": len(requests),
        "failed": len(failed),
        "failures": failed[:5],
        "prompt_tokens": [request.prompt_tokens for request in requests],
        "output_tokens": [len(request.token_times) for request in requests],
    }


def arrays(requests: list[Served]) -> dict[str, Any]:
    """The raw samples: a row a request, and all token times one after the other with offsets."""
    lengths = [len(request.token_times) for request in requests]
    times = [moment for request in requests for moment in request.token_times]
    return {
        "sequence": np.array([request.sequence for request in requests], np.int64),
        "prompt_tokens": np.array([request.prompt_tokens for request in requests], np.int64),
        "submitted": np.array([request.submitted for request in requests], np.float64),
        "finished": np.array([request.finished for request in requests], np.float64),
        "token_times": np.array(times, np.float64),
        "offsets": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
    }


def around() -> dict[str, Any]:
    """What decides whether two sides may be compared, as this process has it."""
    names = sorted(name for name in sys.modules if "batch_invariant" in name.replace("-", "_"))
    try:
        libraries = [str(entry["path"]) for entry in mapped_files()]
    except OSError:
        libraries = None
    return {
        "transport": transport(dict(os.environ)),
        "image": image(),
        "modules": [name for name in names if not name.startswith(("vllm.", f"{__package__.partition('.')[0]}."))],
        "libraries": None if libraries is None else [path for path in libraries if _speaks_of_invariance(path)],
    }


def _speaks_of_invariance(path: str) -> bool:
    name = os.path.basename(path).lower().replace("-", "_")
    return "batch_invariant" in name or "batchinvariant" in name
