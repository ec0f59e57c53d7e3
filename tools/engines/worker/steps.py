"""Runs one step on an engine and writes its capture; the live canary; what a `generate` step changes for later ones."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .capture import CaptureWriter
from .engine import Engine, EngineError, Step, StepRows
from .job import Job
from .sequences import Sequences
from .weights import Digest

CANARY_ULPS = (1, 64, 4096)
"""Of one weight. Beside a large logit one of a float32 weight is rounded away: then it takes more to be seen."""
ROLES = {"generate": "rollout", "decode": "rollout", "prefill": "recompute", "train_forward": "first_train_forward"}


@dataclass
class Steps:
    """The job's steps in order on one engine."""

    job: Job
    folder: str
    engine: Engine
    sequences: Sequences
    weights: Digest
    architecture: str | None

    def run(self, step: Step) -> dict[str, Any]:
        """`{"capture": relative folder or None, "info": {...}}` for result.json."""
        without_rows = {"canary": self._canary, "provenance": self._provenance, "load": self._load}.get(step["kind"])
        if without_rows is not None:
            return {"capture": None, "info": without_rows(step)}
        if step["kind"] == "follow":
            from .probes.follow import follow

            return {"capture": None, "info": follow(step["folder"], self.job.place.rank, self.run)}
        computed, seen = self._compute(step)
        rows = only_scored(computed, step)
        if step["kind"] == "generate":
            self.sequences = self.sequences.with_responses(sampled(rows))
        relative = self._write(step, rows)
        info = {**rows.info, **seen, "grade": rows.grade, "rows": len(column(rows, "sequence"))}
        return {"capture": relative, "info": info}

    def _compute(self, step: Step) -> tuple[StepRows, dict[str, Any]]:
        if not step.get("observe"):
            return self.engine.run(step, self.sequences), {}
        from .probes.observe import observed

        folder = os.path.join(self.folder, "observed")
        rows, seen = observed(self.job.engine, self.engine, step, self.sequences, folder, self.job.model_path)
        return rows, {"observed": seen}

    def _write(self, step: Step, rows: StepRows) -> str | None:
        # A rank that holds no rows (tensor parallel, pipeline) has nothing to say about them.
        if len(column(rows, "sequence")) == 0 and self.job.place.world_size > 1:
            return None
        relative = os.path.join("captures", step["name"])
        columns = dict(rows.columns)
        columns.setdefault("weight_version", np.full(len(column(rows, "sequence")), self.job.weight_version, np.int64))
        with CaptureWriter(
            os.path.join(self.folder, relative),
            engine=self.job.engine,
            role=ROLES[step["kind"]],
            weights={
                "digest": self.weights.root(),
                "version": self.job.weight_version,
                "tensors": len(self.weights.by_name),
            },
            sampling=rows.sampling,
            logprobs_mode=rows.logprobs_mode,
            temperature=rows.temperature,
            model={"architecture_digest": self.architecture} if self.architecture else None,
        ) as capture:
            capture.add_columns(columns)
            capture.computed(**rows.computation)
        return relative

    def _canary(self, step: Step) -> dict[str, Any]:
        before = self._score(step)
        # One rank must not score again while another is done: they may wait for each other.
        for ulps in CANARY_ULPS if self.job.place is None or self.job.place.world_size == 1 else CANARY_ULPS[:1]:
            touched = self.engine.perturb(ulps)
            try:
                changed = int(np.count_nonzero(before != self._score(step)))
            finally:
                touched.undo()
            if changed:
                break
        after = self._score(step)
        return {
            "rows": len(before),
            "changed": changed,
            "not_restored": int(np.count_nonzero(before != after)),
            **touched.info(),
        }

    def _provenance(self, step: Step) -> dict[str, Any]:
        from .provenance.collect import observe

        return {"file": observe(self.folder, step)}

    def _load(self, step: Step) -> dict[str, Any]:
        from .load.turns import serve_turns

        return serve_turns(self.engine, self.sequences, step, self.folder, self.job.progress)

    def _score(self, step: Step) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """The logprobs' bit patterns of one prefill, in the order of rows."""
        prefill = {"company": [], "packing": "engine", **step, "kind": "prefill"}
        rows = only_scored(self.engine.run(prefill, self.sequences), prefill)
        return np.ascontiguousarray(column(rows, "logprob"), np.float32).view(np.uint32)


def column(rows: StepRows, name: str) -> np.ndarray[Any, Any]:
    value = rows.columns[name]
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def only_scored(rows: StepRows, step: Step) -> StepRows:
    """Without the rows of company; the engine need not leave them out itself."""
    company = step.get("company")
    if not company:
        return rows
    keep = np.flatnonzero(~np.isin(column(rows, "sequence"), company))
    return replace(rows, columns={name: value[keep] for name, value in rows.columns.items()})


def sampled(rows: StepRows) -> dict[int, list[int]]:
    """sequence -> the tokens that were sampled for it, in order."""
    tokens: dict[int, list[int]] = {}
    for sequence, token in zip(column(rows, "sequence").tolist(), column(rows, "token_id").tolist(), strict=True):
        tokens.setdefault(sequence, []).append(token)
    if not tokens:
        raise EngineError("nothing_generated", "the engine generated no token")
    return tokens
