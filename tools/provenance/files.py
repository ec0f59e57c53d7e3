"""Hashes of what a rank named, on this side: BLAKE3 through the cache, SHA-256 against RECORD, owners, build ids."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bitgate.tools.engines.worker.provenance.elf import build_id
from bitgate.tools.engines.worker.provenance.records import Distribution, Recorded, distributions
from bitgate.tools.provenance.hashing import HashCache
from bitgate.tools.provenance.observed import Observation, SeenFile

SYSTEM: Final = (
    "/lib/",
    "/lib64/",
    "/usr/lib/",
    "/usr/lib64/",
    "/lib32/",
    "/usr/local/cuda",
    "/opt/rocm",
    "/usr/local/lib/",
)
"""Where libraries that no Python package owns belong to the system."""


@dataclass(frozen=True)
class KnownFile:
    """A file by its bytes. `record`: the wheel's row; `as_recorded`: are the bytes the row's? None: not known."""

    path: str
    blake3: str | None = None
    sha256: str | None = None
    record: Recorded | None = None
    as_recorded: bool | None = None
    build_id: str | None = None
    unreadable: str | None = None

    @property
    def digest(self) -> str | None:
        return self.blake3 or (f"sha256:{self.sha256}" if self.sha256 else None)

    def same_as(self, other: KnownFile) -> bool | None:
        """By a hash that both have: a file of another host may have come with SHA-256 alone. None: there is no such."""
        pairs = ((self.blake3, other.blake3), (self.sha256, other.sha256))
        equal = [one == two for one, two in pairs if one and two]
        return all(equal) if equal else None


@dataclass(frozen=True)
class Files:
    """Everything that a rank's observation names, by path."""

    known: Mapping[str, KnownFile] = field(default_factory=dict)
    read: int = 0
    """How many were really read; the others' hashes were cached."""

    def of(self, path: str) -> KnownFile:
        return self.known.get(path) or KnownFile(path, unreadable="it was not hashed")


def look_at(observation: Observation, cache: HashCache) -> Files:
    """Hashes what this process can see; takes the worker's own hashes for the rest."""
    named: dict[str, SeenFile] = {f.path: f for f in (*(observation.modules or ()), *(observation.mapped or ()))}
    deleted = {f.path for f in observation.mapped or () if f.deleted}
    here = [path for path, seen in named.items() if path not in deleted and seen.is_here()]
    records = _records(observation)
    owned = {path: row for path in named if (row := records.get(path) or records.get(os.path.realpath(path)))}
    blake = cache.blake3(here)
    sha = cache.sha256(path for path in here if path in owned and owned[path].sha256)
    libraries = {f.path for f in observation.mapped or ()}
    known = {}
    for path, seen in named.items():
        sha256 = sha.digests.get(path) or seen.sha256
        row = owned.get(path)
        known[path] = KnownFile(
            path,
            blake3=blake.digests.get(path),
            sha256=sha256,
            record=row,
            as_recorded=row.sha256 == sha256 if row and row.sha256 and sha256 else None,
            build_id=_build_id(path) if path in libraries and path in blake.digests else None,
            unreadable=_why(path, seen, blake.unreadable, path in blake.digests, path in deleted),
        )
    return Files(known, blake.read)


def _why(path: str, seen: SeenFile, failed: Mapping[str, str], hashed: bool, deleted: bool) -> str | None:
    if hashed or seen.sha256 or deleted:
        return None
    return failed.get(path) or seen.unreadable or "bitgate does not see the file that the worker sees"


def _records(observation: Observation) -> dict[str, Recorded]:
    """Rows of every RECORD on the worker's path that can be read here."""
    rows: dict[str, Recorded] = {}
    for found in installed(observation).values():
        rows |= found.record
    return rows


def installed(observation: Observation) -> Mapping[str, Distribution]:
    return distributions(observation.place.path) if observation.place else {}


def _build_id(path: str) -> str | None:
    try:
        return build_id(path)
    except OSError:
        return None


def source_files(source: Path, modules: Iterable[str]) -> dict[str, Path]:
    """Module -> its file in a source tree, looked for at the tree's top, below `src`, and as the package itself."""
    found: dict[str, Path] = {}
    for name in modules:
        parts = name.split(".")
        roots = [source, source / "src", *([source.parent] if source.name == parts[0] else [])]
        for root in roots:
            base = root.joinpath(*parts)
            candidate = next((p for p in (base / "__init__.py", base.with_suffix(".py")) if p.is_file()), None)
            if candidate is not None:
                found[name] = candidate
                break
    return found


def is_system(path: str) -> bool:
    return path.startswith(SYSTEM)
