"""A side's provenance whole: stable facts apart from volatile ones, differences of two sides, the fingerprint."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import JsonValue

from bitgate.tools.config.digests import digest_env
from bitgate.tools.provenance.check import WORKER, Check, RankFacts, flattened
from bitgate.tools.provenance.files import KnownFile
from bitgate.tools.provenance.ranks import modules_of
from bitgate.tools.redaction import redact_env

MOST_NAMED: Final = 40


@dataclass(frozen=True)
class SideProvenance:
    """All ranks of a side, and the checks made on them."""

    side: str
    ranks: tuple[RankFacts, ...]
    checks: tuple[Check, ...]

    @property
    def stable(self) -> dict[str, dict[str, str]]:
        """By group, facts of rank 0 that do not change from one run to the next on one installation."""
        return stable_facts(self.ranks[0])

    @property
    def digest(self) -> str:
        """Of the groups that do not depend on which modules a run happened to import."""
        kept = {name: facts for name, facts in self.stable.items() if name not in ("modules", "libraries")}
        text = json.dumps(kept, sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()

    def record(self) -> dict[str, Any]:
        """The artifact: checks, stable facts, and every rank's volatile ones and files."""
        return {
            "side": self.side,
            "digest": self.digest,
            "checks": [{**vars(check), "verdict": check.verdict} for check in self.checks],
            "stable": self.stable,
            "ranks": [_rank(facts) for facts in self.ranks],
        }


def stable_facts(facts: RankFacts) -> dict[str, dict[str, str]]:
    seen = facts.seen
    return {
        "packages": {n: _package(d) for n, d in sorted((seen.distributions or {}).items())},
        "trees": {n: f"{t.commit}{' and changes' if t.dirty else ''}" for n, t in sorted((seen.trees or {}).items())},
        "modules": {name: file.digest for name, file in modules_of(facts).items() if file.digest},
        "libraries": {path: file.digest for path, file in _libraries(facts).items() if file.digest},
        "environment": redact_env(digest_env(seen.environment_now or {})),
        "transport": redact_env(seen.transport or {}),
        "engine": flattened(facts.chosen),
        "device": flattened(seen.device.stable) if seen.device else {},
        "image": {"digest": seen.image.digest} if seen.image and seen.image.digest else {},
        "replaced": {r.function: r.module for r in seen.replaced or () if not r.module.startswith(WORKER)},
    }


def _libraries(facts: RankFacts) -> dict[str, KnownFile]:
    """By path, without bitgate's own."""
    return {lib.path: facts.files.of(lib.path) for lib in facts.seen.mapped or () if f"/{WORKER}/" not in lib.path}


FILES: Final[dict[str, Callable[[RankFacts], dict[str, KnownFile]]]] = {"modules": modules_of, "libraries": _libraries}
"""Groups of files, which are compared by a hash that both sides have."""


def _package(found: Any) -> str:
    origin = f"commit {found.commit}" if found.commit else f"record {found.record}" if found.record else "no record"
    return f"{found.version}, {origin}"


def _rank(facts: RankFacts) -> dict[str, Any]:
    seen = facts.seen
    known = facts.files.known
    return {
        "rank": facts.rank,
        "place": seen.place.model_dump(mode="json", exclude={"path"}) if seen.place else None,
        "path": list(seen.place.path) if seen.place else [],
        "environment": redact_env(seen.environment_now or {}),
        "environment_changed_since_start": _changed(seen.environment_at_start, seen.environment_now),
        "device": seen.device.volatile if seen.device else {},
        "children": [child.model_dump() for child in seen.children or ()],
        "replaced": [found.model_dump() for found in seen.replaced or ()],
        "replaced_within_package": seen.replaced_within,
        "caches": [cache.model_dump() for cache in seen.caches or ()],
        "trees": {name: tree.model_dump() for name, tree in (seen.trees or {}).items()},
        "not_observed": seen.not_observed,
        "libraries": [
            {
                "path": lib.path,
                "blake3": known[lib.path].blake3 if lib.path in known else None,
                "build_id": known[lib.path].build_id if lib.path in known else None,
                "package": record.distribution if lib.path in known and (record := known[lib.path].record) else None,
                "deleted": lib.deleted,
            }
            for lib in seen.mapped or ()
        ],
    }


def _changed(start: Mapping[str, str] | None, now: Mapping[str, str] | None) -> dict[str, JsonValue]:
    """Variables that the process itself set or changed after its start."""
    before, after = redact_env(start or {}), redact_env(now or {})
    return {name: [before.get(name), after.get(name)] for name in after if before.get(name) != after[name]}


@dataclass(frozen=True)
class Difference:
    """`compared` is False of a file of both sides that has no hash which both sides know."""

    group: str
    name: str
    left: str | None
    right: str | None
    compared: bool = True


def differences(left: SideProvenance, right: SideProvenance) -> list[Difference]:
    """What two sides run that is not the same. A module or library that only one of them happened to load is apart."""
    files = {group: (of(left.ranks[0]), of(right.ranks[0])) for group, of in FILES.items()}
    found = []
    for group, facts in left.stable.items():
        other = right.stable[group]
        for name in sorted({*facts, *other}):
            one, two = facts.get(name), other.get(name)
            same: bool | None = one == two
            if group in files and one and two:
                same = files[group][0][name].same_as(files[group][1][name])
            if not same:
                found.append(Difference(group, name, one, two, compared=same is not None))
    return found


def by_group(found: Sequence[Difference]) -> dict[str, JsonValue]:
    """Small enough to answer with: for files the counts, for everything else the first names with both values."""
    groups: dict[str, JsonValue] = {}
    for group in dict.fromkeys(item.group for item in found):
        items = [item for item in found if item.group == group]
        if group in FILES:
            both = [item for item in items if item.left and item.right]
            changed = [item.name for item in both if item.compared]
            lone = {"only_left": sum(not i.right for i in items), "only_right": sum(not i.left for i in items)}
            apart = {"not_compared": len(both) - len(changed)} if len(both) > len(changed) else {}
            groups[group] = {"other_bytes": list(changed[:MOST_NAMED]), **lone, **apart}
        else:
            groups[group] = {item.name: [item.left, item.right] for item in items[:MOST_NAMED]}
    return groups


def fingerprint(sides: Sequence[SideProvenance]) -> dict[str, Any]:
    """`{"host", "files": [[path, size, mtime_ns]]}`: by it a gate sees, without reading a byte, that code changed."""
    files: dict[str, tuple[int, int]] = {}
    for side in sides:
        for rank in side.ranks:
            for seen in (*(rank.seen.modules or ()), *(rank.seen.mapped or ())):
                here = rank.files.of(seen.path).blake3 is not None
                if seen.stat and here and f"/{WORKER}/" not in seen.path:
                    files[seen.path] = (seen.stat[2], seen.stat[3])
    return {"host": socket.gethostname(), "files": [[path, *stat] for path, stat in sorted(files.items())]}
