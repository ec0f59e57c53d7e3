"""What a side's ranks reported, as types: `result.json` of every rank, and the job's result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, JsonValue


class ResultModel(BaseModel):
    """Read fail-closed: the worker is ours, so a key we do not know means another version or garbage."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Description(ResultModel):
    """What the engine really chose. `stable` enters the side digest, `volatile` never does."""

    stable: dict[str, JsonValue] = {}
    volatile: dict[str, JsonValue] = {}


class WeightsRecord(ResultModel):
    """Canonical digest of the resident weights (worker/weights.py): the root, and every tensor's own."""

    digest: str
    tensors: int
    bytes: int
    by_name: dict[str, str] = {}
    unreadable: dict[str, str] = {}


class ModelDigest(ResultModel):
    architecture_digest: str


class StepResult(ResultModel):
    capture: str | None = None
    info: dict[str, JsonValue] = {}


class WorkerFailure(ResultModel):
    code: str
    message: str


class RankResult(ResultModel):
    """One rank's result.json."""

    rank: int
    world_size: int
    describe: Description = Description()
    weights: WeightsRecord | None = None
    model: ModelDigest | None = None
    steps: dict[str, StepResult] = {}
    error: WorkerFailure | None = None


@dataclass(frozen=True)
class JobResult:
    """Every rank's result, in rank order, none missing and none with an error."""

    side: str
    folder: Path
    ranks: tuple[RankResult, ...]
    seconds: float

    def capture(self, step: str, rank: int = 0) -> Path | None:
        """The capture folder that `rank` wrote for `step`; None when that rank wrote none."""
        relative = self.ranks[rank].steps[step].capture if step in self.ranks[rank].steps else None
        return None if relative is None else self.rank_folder(rank) / relative

    def captures(self, step: str) -> tuple[Path, ...]:
        """The capture folders of all ranks that wrote one for `step`, in rank order."""
        found = (self.capture(step, rank) for rank in range(len(self.ranks)))
        return tuple(path for path in found if path is not None)

    def rank_folder(self, rank: int) -> Path:
        return self.folder / "out" / rank_name(rank)


def rank_name(rank: int) -> str:
    return f"rank{rank:05d}"
