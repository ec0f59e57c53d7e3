"""Run by the engine's interpreter: localises the reported bugs on the product's own path, one JSON line each.

`reports.py WORK [NAME-PART]`: from hashing every point to the class and the repro, in this one process.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from bitgate.tools.bisect.cause import Localised, localise
from bitgate.tools.bisect.conclude import amplified
from bitgate.tools.bisect.graph import label
from bitgate.tools.bisect.observation import read_observation
from bitgate.tools.bisect.pairs import target_of
from bitgate.tools.engines.worker.engines.python import PythonEngine
from bitgate.tools.engines.worker.job import Job
from bitgate.tools.engines.worker.probes.observe import observed
from bitgate.tools.engines.worker.probes.probe import probe
from bitgate.tools.engines.worker.sequences import Sequences

SHRINK_S = 2.0
CUT = ("15 inv_freq in bfloat16", "16 sections of mrope permuted", "1 another eps", "attention by blocks and whole")
"""Cases whose repro is cut in size: one of each kind of cut. Cutting costs more than all that comes before it."""
MODULE = Path(__file__).with_name("reported.py")


def drawn() -> Sequences:
    rng = np.random.default_rng(5)
    return Sequences.of([(rng.integers(0, 200, n).tolist(), rng.integers(0, 200, 4).tolist()) for n in (9, 5)])


def engine_of(case: str, side: str) -> Any:
    options = {"case": case, "side": side}
    job = Job(1, "r", side, "python", "", 0, options, "", [], "", "", 5.0, 1, str(MODULE))
    return PythonEngine("", options, job)


def one(case: str, work: Path, *, proofs: bool) -> dict[str, Any]:
    started, sequences = time.monotonic(), drawn()
    engines = {side: engine_of(case, side) for side in "ab"}

    def seen(target: Any) -> None:
        for side, engine in engines.items():
            step = {"kind": "prefill", "name": "step", "groups": [[0], [1]], "observe": {"target": target}}
            observed("python", engine, step, sequences, str(work / side))

    seen(None)
    found = localise(*(read_observation([work / side / "step"]) for side in "ab"))
    if found.cause is None:
        return {"case": case, "point": None, "class": "equal" if not found.different else "no cause"}
    seen(target_of(found.cause.node, found.cause.row, found.layers).model_dump())
    report = said(found, work, proofs, SHRINK_S if case in CUT else 0.0)
    return {"case": case, **report, "seconds": round(time.monotonic() - started, 2)}


def said(found: Localised, work: Path, proofs: bool, shrink_s: float) -> dict[str, Any]:
    assert found.cause is not None
    sequence, position = found.cause.row
    options = {
        "a": str(work / "a" / "step"), "b": str(work / "b" / "step"), "names": ["a", "b"], "same_side": False,
        "kind": found.cause.node.kind, "where": label(found.cause.node.point), "sequence": sequence,
        "position": position, "repro": str(work / "repro"), "proofs": 3 if proofs else 0, "shrink_s": shrink_s,
    }  # fmt: skip
    report = probe(options)
    if not proofs and "repro" in report:
        report["repro"]["reproduces"] = (
            runpy.run_path(str(work / "repro" / "repro.py"), run_name="repro")["main"]() == 1
        )
    equal = [label(point) for point, compared in found.compared.items() if not compared.different]
    return {"point": label(found.cause.node.point), "equal": equal, "amplified": amplified(found), **report}


def main() -> None:
    work, part = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
    sys.path.insert(0, str(MODULE.parent))
    from reported import CASES

    for number, case in enumerate(name for name in CASES if part in name):
        with open(os.devnull, "w", encoding="utf-8") as quiet, contextlib.redirect_stdout(quiet):
            found = one(case, work / str(number), proofs=number == 0)
        wanted = CASES[case]
        place = f"layers.0.{wanted.out}" if wanted.out != "logprob" else wanted.out
        found["wanted"] = {"point": place, "class": wanted.class_, "says": wanted.says}
        sys.stdout.write(json.dumps(found, allow_nan=False) + "\n")
        sys.stdout.flush()
        shutil.rmtree(work / str(number), ignore_errors=True)


if __name__ == "__main__":
    main()
