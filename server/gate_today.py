"""Today, for the gates: the configuration, what was observed last, and a stat of the files that provenance named."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from bitgate.gates.identity import configured_changes
from bitgate.gates.source import StoreSource
from bitgate.gates.spec import ModelRole, SideRole
from bitgate.gates.table import GATES
from bitgate.gates.today import ModelToday, PolicyToday, SideToday, Today
from bitgate.store.ids import now
from bitgate.store.records import Evidence, ModelRecord, RegisteredModel, SideRecord
from bitgate.store.schema import GATE_SIDES
from bitgate.store.store import Store
from bitgate.tools.config.digests import digest_env
from bitgate.tools.config.project import Project
from bitgate.tools.config.sides import Side
from bitgate.tools.registry import TOOLS

LOOKED_AT: Final = 20
"""Pieces of evidence looked through for the newest observation of a side."""
FINGERPRINT: Final = "fingerprint.json"
"""Artifact of check_provenance: `{"host": …, "files": [[path, size, mtime_ns], …]}`."""


def today(project: Project, store: Store) -> Today:
    """What the gates compare evidence with. Reads the configuration, some evidence, and file times; runs nothing."""
    return Today(
        sides=_sides(project, store),
        models=_models(project, store),
        policy=_policy(project),
        tools=frozenset(TOOLS),
        now=now(),
    )


def _policy(project: Project) -> PolicyToday:
    policy, said = project.policy, project.policy.model_fields_set
    return PolicyToday(
        updates_per_step=policy.updates_per_step if "updates_per_step" in said else None,
        corrections=policy.corrections if "corrections" in said else None,
        cross_rank_reduction=policy.cross_rank_reduction,
        rollout_floor=policy.rollout_floor,
        provenance_max_age_s=policy.provenance_max_age,
    )


# --- sides ---------------------------------------------------------------------------------------------------


def _sides(project: Project, store: Store) -> dict[SideRole, SideToday]:
    roles: tuple[SideRole, ...] = ("rollout", "trainer", "baseline")
    files = Files()
    return {role: side_today(project, store, role, files) for role in roles if role in project.config.side}


def side_today(project: Project, store: Store, name: str, files: Files | None = None) -> SideToday:
    """The side as configured, with the stable facts of its newest observation under that very configuration."""
    side = project.side(name)
    configured = configured_record(side)
    bare = SideToday(name, side.owner, configured=configured)
    if name not in GATE_SIDES:
        return bare
    observed = _observed(store, name, configured)
    if observed is None:
        return bare
    changed = _changed_files(store, name, files or Files())
    if changed:
        return replace(bare, unknown=f"side {name}: {changed} changed since its provenance; nothing is known of it now")
    stable = dict(observed.stable)
    record = configured.model_copy(update={"stable": stable, "digest": side.digest(stable, configured.axes)})
    return replace(bare, record=record)


def configured_record(side: Side) -> SideRecord:
    """The configured part of a side; its digest is empty, for that needs an observation."""
    from bitgate.tools.checks.select import axes_of
    from bitgate.tools.engines.adapters import adapter_of

    axes = side.axes or () if side.engine == "capture" else axes_of(side, adapter_of(side.engine))
    return SideRecord(
        name=side.name,
        engine=side.engine,
        digest="",
        options=dict(side.options),
        axes=tuple(axes),
        env=digest_env(side.env),
    )


def _observed(store: Store, name: str, configured: SideRecord) -> SideRecord | None:
    for evidence in _about(store, name):
        record = next((record for record in evidence.sides.values() if record.name == name), None)
        if (
            record
            and record.configured
            and evidence.grade == "observed"
            and not configured_changes(name, record, configured)
        ):
            return record
    return None


def _about(store: Store, name: str, tool: str | None = None) -> Iterable[Evidence]:
    assert name in GATE_SIDES
    where = f"{name} IS NOT NULL" + (" AND tool = :tool" if tool else "")
    sql = f"""SELECT body FROM entries WHERE seq IN
      (SELECT seq FROM evidence_keys WHERE {where} ORDER BY seq DESC LIMIT {LOOKED_AT}) ORDER BY seq DESC"""
    return (Evidence.model_validate_json(body) for (body,) in store.ledger.rows(sql, {"tool": tool} if tool else {}))


def _changed_files(store: Store, name: str, files: Files) -> str:
    """Files of this side's last provenance that are not as they were; empty when all are, or it was another host."""
    newest = next(iter(_about(store, name, "check_provenance")), None)
    named = next((ref for ref in newest.artifacts if ref.name.endswith(FINGERPRINT)), None) if newest else None
    changed = files.differing(store, named.digest) if named else []
    return f"{changed[0]} and {len(changed) - 1} more files" if len(changed) > 1 else "".join(changed)


class Files:
    """One look at the files that provenances named. Sides that share an interpreter share most of them."""

    def __init__(self) -> None:
        self._stats: dict[str, tuple[int, int] | None] = {}

    def differing(self, store: Store, digest: str) -> list[str]:
        named = _fingerprint(store, digest)
        return [path for path, size, mtime_ns in named if self._stat(path) != (size, mtime_ns)]

    def _stat(self, path: str) -> tuple[int, int] | None:
        if path not in self._stats:
            self._stats[path] = _stat(path)
        return self._stats[path]


def _stat(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _fingerprint(store: Store, digest: str) -> list[tuple[str, int, int]]:
    """Path, size, mtime of each file; nothing when it was made on another host, whose files are not these."""
    return _read_fingerprint(store.artifacts.path(digest))


@lru_cache(maxsize=16)
def _read_fingerprint(path: Path) -> list[tuple[str, int, int]]:
    """An artifact's path holds its digest, so what was read once stays true."""
    with path.open("rb") as file:
        body: dict[str, Any] = json.load(file)
    files = body.get("files", []) if body.get("host") == socket.gethostname() else []
    return [(str(path), int(size), int(mtime_ns)) for path, size, mtime_ns in files]


# --- models --------------------------------------------------------------------------------------------------


def _models(project: Project, store: Store) -> dict[ModelRole, ModelToday]:
    slices = registered_slices(store)
    name = full_model(project, slices)
    if name is None:
        return {}
    models: dict[ModelRole, ModelToday] = {"full": _model_today(project, store, name)}
    newest = next((model for model in reversed(slices) if model.slice_of == name), None)
    if newest is not None:
        models["slice"] = _slice_today(newest)
    return models


def registered_slices(store: Store) -> list[RegisteredModel]:
    found = [RegisteredModel.model_validate(entry.body) for entry in store.entries(kind="model")]
    return [model for model in found if model.slice_of]


def full_model(project: Project, slices: Iterable[RegisteredModel]) -> str | None:
    """The model that is not a slice: the only one, the one called `full`, or the rollout side's."""
    cut = {model.name for model in slices}
    names = [name for name in project.config.model if name not in cut]
    if len(names) == 1 or not names:
        return names[0] if names else None
    rollout = project.config.side.get("rollout")
    return "full" if "full" in names else (rollout.model if rollout and rollout.model in names else None)


def _model_today(project: Project, store: Store, name: str) -> ModelToday:
    seen = _seen_model(store, name)
    if seen is None:
        return ModelToday(name, unknown=f"model {name}: no run has read its weights yet")
    record, at = seen
    written = _written_after(project.model(name).path, at)
    if written:
        return ModelToday(name, unknown=f"model {name}: {written} was written after the last run that read it")
    return ModelToday(name, record)


def _seen_model(store: Store, name: str) -> tuple[ModelRecord, str] | None:
    """The model's identity as the newest run saw it, and when that run began."""
    source = StoreSource(store)
    needs = {(need.tool, need.check): need for gate in GATES for need in gate.needs if need.model}
    found = [seen for need in needs.values() if (seen := source.newest(need))]
    for seen in sorted(found, key=lambda item: item.seq, reverse=True):
        record = next((record for record in seen.evidence.models.values() if record.name == name), None)
        if record and seen.evidence.grade == "observed":
            return record, seen.evidence.started_at
    return None


def _slice_today(model: RegisteredModel) -> ModelToday:
    record = ModelRecord.model_validate(model.model_dump(include=set(ModelRecord.model_fields)))
    if not Path(model.path).is_dir():
        return ModelToday(model.name, unknown=f"model {model.name}: {model.path} is no longer there")
    return ModelToday(model.name, record)


def _written_after(folder: Path, at: str) -> str:
    """A weight or configuration file that is newer than `at`; empty when none is."""
    limit = datetime.fromisoformat(at).timestamp()
    files = [*folder.glob("*.safetensors"), *folder.glob("*.json")]
    return next((path.name for path in files if path.stat().st_mtime > limit), "")
