"""What a rank wrote of itself, as types: provenance.json of the worker (tools/engines/worker/provenance/collect.py)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue, field_validator


class Seen(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class SeenFile(Seen):
    """A module's or a library's file. `stat`: device, inode, size, mtime, ctime as the worker saw them."""

    path: str
    stat: tuple[int, int, int, int, int] | None = None
    sha256: str | None = None
    unreadable: str | None = None

    def is_here(self) -> bool:
        """Whether this process sees the very same file."""
        try:
            seen = os.stat(self.path)
        except (OSError, ValueError):
            return False
        here = (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)
        return here == self.stat


class SeenModule(SeenFile):
    name: str
    sourceless: bool = False

    @property
    def top(self) -> str:
        return self.name.partition(".")[0]


class SeenLibrary(SeenFile):
    deleted: bool = False


class Place(Seen):
    host: str
    boot: str | None = None
    pid: int
    cwd: str
    executable: str
    prefix: str
    base_prefix: str
    path: tuple[str, ...] = ()
    observed_at: float
    started_at: float | None = None


class SeenDistribution(Seen):
    version: str
    folder: str
    record: str | None = None
    editable: str | None = None
    commit: str | None = None


class SeenTree(Seen):
    root: str
    commit: str | None = None
    dirty: tuple[str, ...] | None = None


class SeenReplacement(Seen):
    function: str
    by: str
    line: int
    module: str
    genuine: bool = False


class SeenCache(Seen):
    cache: str
    file: str
    made_at: float
    from_cache: bool


class SeenChild(Seen):
    pid: int
    command: str
    computes: bool


class SeenImage(Seen):
    container: bool = False
    digest: str | None = None


class SeenDevice(Seen):
    stable: dict[str, JsonValue] = {}
    volatile: dict[str, JsonValue] = {}


class Observation(Seen):
    """One rank. A section that could not be observed is None here, and `not_observed` says why."""

    format: int
    place: Place | None = None
    modules: tuple[SeenModule, ...] | None = None
    mapped: tuple[SeenLibrary, ...] | None = None
    replaced: tuple[SeenReplacement, ...] | None = None
    replaced_skipped: tuple[str, ...] = ()
    replaced_within: int = 0
    stale: tuple[dict[str, str], ...] | None = None
    copies: dict[str, tuple[str, ...]] | None = None
    environment_at_start: dict[str, str] | None = None
    environment_now: dict[str, str] | None = None
    distributions: dict[str, SeenDistribution] | None = None
    trees: dict[str, SeenTree] | None = None
    children: tuple[SeenChild, ...] | None = None
    image: SeenImage | None = None
    device: SeenDevice | None = None
    transport: dict[str, str] | None = None
    caches: tuple[SeenCache, ...] | None = None
    not_observed: dict[str, str] = {}

    @field_validator("format")
    @classmethod
    def _known(cls, value: int) -> int:
        if value != 1:
            raise ValueError("another version of the worker wrote this")
        return value


def read_observation(path: Path) -> Observation:
    """Raises: OSError, ValueError (pydantic's ValidationError is one)."""
    return parse_observation(path.read_bytes())


def parse_observation(data: bytes | str) -> Observation:
    import json

    body: dict[str, Any] = json.loads(data)
    missing = {
        name: str(value["not_observed"])
        for name, value in body.items()
        if isinstance(value, dict) and "not_observed" in value
    }
    kept = {name: value for name, value in body.items() if name not in missing}
    if isinstance(found := kept.pop("replaced", None), dict):
        kept |= {
            "replaced": found["functions"],
            "replaced_skipped": found["skipped"],
            "replaced_within": found["within_package"],
        }
    if isinstance(found := kept.pop("bytecode", None), dict):
        kept["stale"] = found["stale"]
    for entry in kept.get("modules") or ():
        entry["path"] = entry.pop("file")
    return Observation.model_validate({**kept, "not_observed": missing})
