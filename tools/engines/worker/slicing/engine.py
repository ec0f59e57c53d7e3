"""The engine `slice_proof`: no model stays loaded; its description is the proof of a slice."""

from __future__ import annotations

import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..engine import EngineError, Perturbation, Step, StepRows
from ..job import Job
from ..sequences import Sequences

Report = dict[str, Any]


class SliceProof:
    """Runs the proofs that `options["proofs"]` names; each ends in a report, whatever happens in it."""

    def __init__(self, model_path: str, options: dict[str, Any], job: Job) -> None:
        self._reports: dict[str, Report] = {}
        scratch = tempfile.mkdtemp(prefix="bitgate-slice-")
        try:
            for number, name in enumerate(options["proofs"]):
                job.progress(number / len(options["proofs"]), f"slice proof: {name}")
                self._reports[name] = self._one(name, {**options, "slice": model_path, "scratch": scratch})
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _one(self, name: str, options: Mapping[str, Any]) -> Report:
        try:
            return proof(name)(options)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - what a proof raises is its result
            traceback.print_exc()
            return {"mode": "failed", "why": f"{type(error).__name__}: {str(error)[:600]}"}

    def describe(self) -> dict[str, dict[str, Any]]:
        return {"stable": {}, "volatile": dict(self._reports)}

    def weights(self) -> Iterator[tuple[str, Any]]:
        return iter(())

    def run(self, step: Step, sequences: Sequences) -> StepRows:
        raise EngineError("unsupported_step", f"slice_proof runs no steps, got {step.get('kind')!r}")

    def perturb(self, ulps: int) -> Perturbation:
        raise EngineError("unsupported_step", "slice_proof has no weights to perturb")

    def close(self) -> None:
        """Nothing is held."""


def proof(name: str) -> Callable[[Mapping[str, Any]], Report]:
    """Imported on use: only the vLLM proof may import vLLM."""
    if name == "transformers":
        from .loading import transformers_report

        return transformers_report
    if name == "vllm":
        from .vllm_load import vllm_report

        return vllm_report
    from .window import window_report

    return window_report


ENGINE = SliceProof
