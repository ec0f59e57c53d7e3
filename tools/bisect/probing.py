"""The experiments on two recorded programs, in a process of their own: what kills it is told, and loses nothing.

Kernels may end their process when an experiment gives them what no engine would. The probe writes down what it knows
before each experiment. When it is killed, the class is not known, and a second process, which tries nothing, makes the
repro out of the programs as they ran in their engines.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pydantic import JsonValue

from bitgate.tools.bisect.conclude import Outcome
from bitgate.tools.bisect.graph import label
from bitgate.tools.bisect.pairs import Pair
from bitgate.tools.bisect.setting import environment_of
from bitgate.tools.bisect.watch import Watch
from bitgate.tools.checks.execute import run_probe
from bitgate.tools.config.sides import Side
from bitgate.tools.errors import WorkerError
from bitgate.tools.runs.context import RunContext

PROBE_TIMEOUT_S: Final = 1800.0
JOURNAL: Final = "probe.json"


async def probe(context: RunContext, watch: Watch, outcome: Outcome, folders: tuple[Path | None, Path | None]) -> None:
    """The experiments, in the interpreter of the side whose kernels are needed."""
    assert outcome.pair is not None and outcome.found is not None and outcome.found.cause is not None
    if folders[0] is None or folders[1] is None:
        lacking = outcome.pair.a.name if folders[0] is None else outcome.pair.b.name
        outcome.probe = {"failed": f"the operators of {lacking} could not be recorded"}
        return
    cause, pair = outcome.found.cause, outcome.pair
    repro = context.folder / "repro"
    options: dict[str, JsonValue] = {
        "a": str(folders[0]),
        "b": str(folders[1]),
        "names": [pair.a.name, pair.b.name],
        "kind": cause.node.kind,
        "where": label(cause.node.point),
        "sequence": cause.row[0],
        "position": cause.row[1],
        "same_side": pair.same_side,
        "repro": str(repro),
        "journal": str(context.folder / JOURNAL),
    }
    side = _under_their_setting(_prober(watch, pair, folders), watch, pair, folders)
    outcome.probe = await _probed(context, side, options)
    if (repro / "repro.py").exists():
        outcome.repro = str(repro.relative_to(context.project.root))


async def _probed(context: RunContext, side: Side, options: dict[str, JsonValue]) -> dict[str, Any]:
    try:
        return await run_probe(context, side, "bisect_probe", context.folder, options, PROBE_TIMEOUT_S)
    except WorkerError as error:
        known = until(context.folder / JOURNAL, f"{error.code}: {error.message}")
    try:
        return await run_probe(
            context, side, "bisect_probe", context.folder, options | {"known": known}, PROBE_TIMEOUT_S
        )
    except WorkerError as error:
        return known | {"repro": {"failed": f"{error.code}: {error.message}"}}


def until(journal: Path, died: str) -> dict[str, Any]:
    """What a probe that did not come to its end knew. A class that it had is kept; else the class is unknown."""
    if not journal.is_file():
        return {"failed": f"the experiments ended without a result: {died}"}
    body = json.loads(journal.read_text(encoding="utf-8"))
    known: dict[str, Any] = body["known"]
    known["experiments"] = [*known["experiments"], {"experiment": body["during"], "result": f"not finished: {died}"}]
    if not body["classified"]:
        said = f"the experiments ended during {body['during']}: {died}"
        known |= {"class": "unknown", "mechanism": "", "failed": said}
    return known


def _prober(watch: Watch, pair: Pair, folders: tuple[Path | None, Path | None]) -> Side:
    """The side whose own kernels are in its program; the first when both or none have any."""
    legs = {leg.engine: folder for leg, folder in zip((pair.a, pair.b), folders, strict=True) if folder}
    starts = {start.name: start for start in watch.plan.starts}
    needing = [name for name, folder in legs.items() if _own_kernels(folder)]
    chosen = (needing or list(legs))[0]
    return watch.sides[starts[chosen].side]


def _under_their_setting(side: Side, watch: Watch, pair: Pair, folders: tuple[Path | None, Path | None]) -> Side:
    """The side's own program has the first word: its kernels are what it is chosen for."""
    starts = {start.name: start.side for start in watch.plan.starts}
    legs = sorted(zip((pair.a, pair.b), folders, strict=True), key=lambda leg: starts[leg[0].engine] != side.name)
    return replace(side, env={**side.env, **environment_of(folder for _, folder in legs if folder is not None)})


def _own_kernels(folder: Path) -> bool:
    body = json.loads((folder / "program0.json").read_text(encoding="utf-8"))
    return any(not str(op[0]).startswith("aten.") for op in body["ops"])
