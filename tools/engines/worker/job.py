"""The job as the worker reads it: the fields of `bitgate.tools.engines.jobs`, without pydantic (a test compares)."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from .engine import Step


@dataclass(frozen=True)
class Place:
    """Which rank this is."""

    rank: int
    world_size: int
    local_rank: int
    master_addr: str | None = None
    master_port: int | None = None

    @classmethod
    def of(cls, options: argparse.Namespace, environment: Mapping[str, str]) -> Place:
        given: str = options.rank
        rank = int(environment[given.removeprefix("env:")]) if given.startswith("env:") else int(given)
        local = options.local_rank
        if local is None:
            local = int(environment.get("LOCAL_RANK") or environment.get("SLURM_LOCALID") or 0)
        if given == "0":
            local = 0
        return cls(rank, options.world, local, options.master_addr, options.master_port)

    def environment(self, now: Mapping[str, str]) -> dict[str, str]:
        """What torch.distributed reads, where the launcher did not set it."""
        wanted = {"RANK": self.rank, "WORLD_SIZE": self.world_size, "LOCAL_RANK": self.local_rank}
        if self.master_addr is not None:
            wanted["MASTER_ADDR"] = self.master_addr  # type: ignore[assignment]
        if self.master_port is not None:
            wanted["MASTER_PORT"] = self.master_port
        if self.world_size == 1:
            return {}
        if self.master_port is not None and "MASTER_ADDR" not in wanted and "SLURM_STEP_NODELIST" in now:
            wanted["MASTER_ADDR"] = first_host(now["SLURM_STEP_NODELIST"])  # type: ignore[assignment]
        return {name: str(value) for name, value in wanted.items() if name not in now}


def _unheard(share: float, message: str) -> None:
    """Progress of a job that nobody watches."""


@dataclass(frozen=True)
class Job:
    """`steps` are as JSON has them; `place` and `progress(share of the step, message)` are added by the rank."""

    version: int
    run_id: str
    side: str
    engine: str
    model_path: str
    weight_version: int
    options: dict[str, Any]
    sequences: str
    steps: list[Step]
    out: str
    lease: str
    lease_max_age_s: float
    log_limit: int
    module: str | None
    place: Place = field(default_factory=lambda: Place(0, 1, 0))
    progress: Callable[[float, str], None] = _unheard

    @classmethod
    def read(cls, path: str) -> Job:
        with open(path, encoding="utf-8") as file:
            body = json.load(file)
        return cls(**{f.name: body[f.name] for f in fields(cls) if f.name not in ("place", "progress")})


def first_host(nodes: str) -> str:
    """The first node of a Slurm node list: `gpu[003-007,011],cpu1` -> `gpu003`."""
    head, bracket, rest = nodes.partition("[")
    if not bracket or "," in head:
        return nodes.split(",")[0]
    return head + rest.split("]")[0].split(",")[0].split("-")[0]
