"""What is installed, what each side would run, and what is missing: the facts behind `bitgate doctor`."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path
from typing import Final

from bitgate.server.about import version
from bitgate.server.probing import NEEDS, PACKAGES, Found, Probe, probe
from bitgate.tools.config.project import Project
from bitgate.tools.config.sides import Side
from bitgate.tools.redaction import redact_env
from bitgate.tools.runs.launchers import Start

CORE: Final = (
    *("mcp", "pydantic", "anyio", "click", "jinja2", "starlette", "uvicorn", "sqlite-utils"),
    *("numpy", "safetensors", "blake3", "matplotlib"),
)
OPTIONAL: Final = {"pyarrow": "workloads from parquet files", "datasette": "browsing the ledger"}


@dataclass(frozen=True)
class Line:
    """One finding. A problem keeps a configured side from running; a gap only matters to those who want it."""

    text: str
    level: str = "ok"


def environment() -> Iterator[Line]:
    python = ".".join(map(str, sys.version_info[:3]))
    yield Line(f"bitgate {version()}, Python {python} ({sys.executable}), SQLite {sqlite3.sqlite_version}")
    yield from (_distribution(name) for name in CORE)
    for name, use in OPTIONAL.items():
        found = _version(name)
        yield Line(f"{name} {found}") if found else Line(f"{name} is not installed: {use}; pip install {name}", "gap")
    if shutil.which("ssh-keygen") is None:
        yield Line("ssh-keygen is not on PATH: reviewers sign with it", "gap")


def _distribution(name: str) -> Line:
    found = _version(name)
    return Line(f"{name} {found}") if found else Line(f"{name} is missing: pip install {name}", "problem")


def _version(name: str) -> str | None:
    try:
        return installed(name)
    except PackageNotFoundError:
        return None


def project_lines(project: Project) -> Iterator[Line]:
    config = project.config
    yield Line(
        f"{project.root}: {len(config.side)} sides, {len(config.model)} models, {len(config.workload)} workloads"
    )
    for name in config.model:
        yield _model_line(name, project.model(name).path)
    for name in config.workload:
        file = project.workload(name).file
        if file is not None and not file.is_file():
            yield Line(f"workload {name}: {file} does not exist", "problem")
    yield _ledger_line(project)


def _model_line(name: str, path: Path) -> Line:
    if not path.is_dir():
        return Line(f"model {name}: {path} is not a folder", "problem")
    if not (path / "config.json").is_file():
        return Line(f"model {name}: {path} has no config.json", "problem")
    shards = len(list(path.glob("*.safetensors")))
    return Line(f"model {name}: {path}, {shards} safetensors files", "ok" if shards else "problem")


def _ledger_line(project: Project) -> Line:
    from bitgate.store.errors import StoreError
    from bitgate.store.store import Store

    if not project.ledger.exists():
        return Line(f"ledger: {project.ledger} will be made by the first run")
    try:
        with Store.open(project.ledger) as store:
            running = len(store.running_runs())
            return Line(f"ledger: {project.ledger}, {store.head().seq} rows, {running} running")
    except StoreError as error:
        return Line(f"ledger: {error}", "problem")


def side_lines(side: Side) -> Iterator[Line]:
    """What a run of this side starts, before anything is asked of its interpreter."""
    yield Line(
        f"engine {side.engine}, launcher {getattr(side.launcher, 'kind', '?')}, model {side.model or 'as called'}"
    )
    if side.python is None:
        yield Line(
            f"reads the capture at {side.capture}", "ok" if side.capture and side.capture.is_dir() else "problem"
        )
        return
    yield Line("runs: " + " ".join(_command(side)))
    yield from (Line(f"env {name}={value}") for name, value in redact_env(side.env).items())
    yield from (Line(f"option {name} = {value!r}") for name, value in side.options.items())
    if side.module is not None and not side.module.is_file():
        yield Line(f"module {side.module} does not exist", "problem")


def _command(side: Side) -> tuple[str, ...]:
    run = Path("<run>")
    script, job = run / "stage" / "bitgate_worker" / "run.py", run / "jobs" / f"1-{side.name}" / "job.json"
    start = Start(python=str(side.python), script=script, job=job, name=f"bitgate-{side.name}", folder=run)
    return side.launcher.launch(start).commands[0].argv


def probe_lines(side: Side, found: Probe) -> Iterator[Line]:
    """What the interpreter said: needed packages first, then the others of the kernel stack."""
    if found.problem:
        yield Line(f"{found.python}: {found.problem}", "problem")
        return
    yield Line(f"{found.python}: Python {found.version}")
    needed = NEEDS[side.engine]
    for package in sorted(PACKAGES, key=lambda package: package.name not in needed):
        yield _package_line(found.package(package.name), package.get_it, package.name in needed)


def _package_line(found: Found, get_it: str, needed: bool) -> Line:
    label = f"{found.name} {found.version or ''}".strip()
    if found.state in ("imports", "found"):
        took = f", imported in {found.seconds:g} s" if found.seconds is not None else ""
        where = f" ({found.module}{took})"
        return Line(label + where)
    what = "is missing" if found.state == "missing" else f"{found.state}: {found.error or found.module}"
    return Line(f"{found.name} {what}. Get it: {get_it}", "problem" if needed else "gap")


def probed(side: Side, timeout_s: float, imports: bool, seen: dict[tuple[object, ...], Probe]) -> Probe:
    """The side's probe; sides with the same interpreter and environment are asked once."""
    key = (side.python, tuple(sorted(side.env.items())))
    if key not in seen:
        seen[key] = probe(str(side.python), side.env, timeout_s=timeout_s, imports=imports)
    return seen[key]
