"""The engine `bisect_probe`: no model; its description is what experiments on two recorded programs showed."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ..engine import EngineError, Perturbation, Step, StepRows
from ..files import write_json
from ..job import Job
from ..sequences import Sequences
from .classify import classify
from .experiments.case import Case, Report
from .repro import PROOFS, Small, shrunk, write_repro
from .rows import differing, shared_rows
from .smaller import SECONDS, smaller
from .stored import load_program


class BisectProbe:
    """`options`: folders of the two programs, the row, the kind of operator, where the repro goes and how
    many fresh processes prove it."""

    def __init__(self, model_path: str, options: Mapping[str, Any], job: Job) -> None:
        self._report: dict[str, Any] = {}
        try:
            self._report = probe(options)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - what an experiment raises limits what is known, no more
            traceback.print_exc()
            self._report = {"failed": f"{type(error).__name__}: {str(error)[:500]}"}

    def describe(self) -> dict[str, dict[str, Any]]:
        return {"stable": {}, "volatile": self._report}

    def weights(self) -> Iterator[tuple[str, Any]]:
        return iter(())

    def run(self, step: Step, sequences: Sequences) -> StepRows:
        raise EngineError("unsupported_step", f"bisect_probe runs no steps, got {step.get('kind')!r}")

    def perturb(self, ulps: int) -> Perturbation:
        raise EngineError("unsupported_step", "bisect_probe has no weights to perturb")

    def close(self) -> None:
        """Nothing is held."""


def probe(options: Mapping[str, Any]) -> dict[str, Any]:
    names: tuple[str, str] = (options["names"][0], options["names"][1])
    programs = load_program(options["a"]), load_program(options["b"])
    for name, program in zip(names, programs, strict=True):
        lacking = program.notes["missing"] + list(program.notes["refused"].values())
        if lacking:
            return {"failed": f"{name}: the operators of the region could not be kept whole: {lacking[0]}"}
    shared = shared_rows(programs[0], programs[1], options["sequence"], options["position"])
    if shared.target < 0:
        return {"failed": "the row under suspicion is not in both programs"}
    case = Case(options["kind"], programs[0], programs[1], shared, bool(options["same_side"]), names)
    known = options.get("known")
    if known is not None:
        return {**known, "repro": _as_recorded(case, known, options)}
    report = classify(case, lambda name, until: _note(options, f"the experiment {name}", case, until, classified=False))
    _note(options, "making the repro smaller", case, report, classified=True)
    return {**_said(case, report), "repro": _repro(case, report, options)}


def _note(options: Mapping[str, Any], during: str, case: Case, report: Report, *, classified: bool) -> None:
    """On the disk before it is tried: what is tried may end the process."""
    if "journal" in options:
        body = {"during": during, "classified": classified, "known": _said(case, report)}
        write_json(options["journal"], body, durable=False)


def _said(case: Case, report: Report) -> dict[str, Any]:
    a, b = case.outputs()
    wide = (a.to(torch.float64) - b.to(torch.float64)).abs() if a.shape == b.shape else torch.tensor([float("nan")])
    return {
        "class": report.label,
        "mechanism": report.mechanism,
        "faulty": report.faulty,
        "leaf": report.leaf,
        "experiments": report.experiments,
        "excluded": report.excluded,
        "rows_different": int(differing(a, b).sum()),
        "rows_compared": len(a),
        "largest_difference": _finite(float(wide.max())),
    }


def _finite(value: float) -> float | None:
    return value if value == value and abs(value) != float("inf") else None


def _repro(case: Case, report: Report, options: Mapping[str, Any]) -> dict[str, Any]:
    small, cuts = smaller(case, report, float(options.get("shrink_s", SECONDS)))
    return _written(case, shrunk(small), cuts, {"class": report.label, "mechanism": report.mechanism}, options)


def _as_recorded(case: Case, known: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The programs as they ran in their engines: nothing is tried on them, since what was tried ended the process."""
    row_a, row_b = (int(rows[case.shared.target]) for rows in (case.shared.a, case.shared.b))
    return _written(case, Small(case.a, case.b, row_a, row_b), [], known, options)


def _written(
    case: Case, small: Small, cuts: list[str], known: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    label = known.get("class", "unknown")
    about = {
        "title": f"{options['where']}: {case.names[0]} and {case.names[1]} differ",
        "lines": {
            "class": f"{label} ({known.get('mechanism') or known.get('failed') or 'no experiment showed why'})",
            "row": f"sequence {options['sequence']}, position {options['position']}",
            "side_a": case.names[0],
            "side_b": case.names[1],
            "torch": torch.__version__,
        },
    }
    proofs, poisoned = int(options.get("proofs", PROOFS)), label == "uninitialised_read"
    made = write_repro(options["repro"], small, about, proofs=proofs, poisoned=poisoned)
    made["cut"] = cuts
    with open(os.path.join(options["repro"], "about.json"), "w", encoding="utf-8") as file:
        json.dump({**about, "proof": made}, file, indent=1, allow_nan=False)
    return made


ENGINE = BisectProbe
