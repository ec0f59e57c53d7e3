"""What engines share that score given tokens in one forward: layouts, ranks, logprobs, the training step's backward."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ..engine import PREFILL, EngineError, Step, StepRows, forward_computation
from ..gradients import gradient_report
from ..job import Job
from ..sequences import Sequences
from .transformers_layout import Batch, batches_of
from .vllm_environment import numeric_environment

KINDS = ("prefill", "train_forward")


class ForwardEngine:
    """Data-parallel over ranks: rank r computes the groups r, r + world size, …; nothing is reduced across ranks.

    An engine gives `_model` (what is trained), `_logits(batch)` [rows, columns, vocabulary], and `_prepare(step)`.
    """

    name = ""
    _model: Any
    _device: torch.device

    def __init__(self, job: Job | None) -> None:
        self._place = (0, 1) if job is None else (job.place.rank, job.place.world_size)
        self._progress = (lambda *_: None) if job is None else job.progress

    def _logits(self, batch: Batch) -> torch.Tensor:
        raise NotImplementedError

    def _prepare(self, step: Step) -> None:
        """Refuse a layout that this model cannot have, before anything is computed."""

    def run(self, step: Step, sequences: Sequences) -> StepRows:
        if step["kind"] not in KINDS:
            raise EngineError(
                "unsupported_step",
                f"step {step['name']}: the {self.name} engine has no {step['kind']}; it scores and trains",
            )
        train = step["kind"] == "train_forward"
        rank, world = self._place
        groups = step["groups"][rank::world]
        self._prepare(step)
        self._model.train(train)
        self._model.zero_grad(set_to_none=True)
        started = time.monotonic()
        columns, passes = self._score(groups, step, sequences, train)
        info: dict[str, Any] = {"groups": len(groups)} | (self._training_info() if train else {})
        computation = forward_computation(columns, passes, train, time.monotonic() - started)
        return StepRows(columns, info, computation)

    def _score(
        self, groups: list[list[int]], step: Step, sequences: Sequences, train: bool
    ) -> tuple[dict[str, torch.Tensor], int]:
        rows: list[dict[str, torch.Tensor]] = [_no_rows()]
        passes = 0
        company = set(step.get("company") or ())
        for number, group in enumerate(groups):
            for batch in batches_of(group, sequences, step.get("packing", "engine")):
                passes += 1
                rows += self._forward(batch, sequences, company, train)
            self._progress((number + 1) / len(groups), f"group {number + 1} of {len(groups)}")
        return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}, passes

    def _forward(
        self, batch: Batch, sequences: Sequences, company: set[int], train: bool
    ) -> list[dict[str, torch.Tensor]]:
        with torch.set_grad_enabled(train):
            logits = self._logits(batch)
            scored = {
                place.sequence: _logprobs(logits, place.row, place.start, sequences, place.sequence)
                for place in batch.places
            }
            if train:
                # The policy-gradient loss with advantage 1: every response token's logprob is in its graph.
                self._backward(-torch.cat(list(scored.values())).mean())
        return [_rows(i, values, sequences, len(scored)) for i, values in scored.items() if i not in company]

    def _backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def _training_info(self) -> dict[str, Any]:
        return {
            "gradients": gradient_report(self._model.named_parameters()),
            "dropout": sorted(
                {
                    name
                    for name, module in self._model.named_modules()
                    if getattr(module, "p", 0) and "Dropout" in type(module).__name__
                }
            ),
        }

    def close(self) -> None:
        self._model.zero_grad(set_to_none=True)


def device_of(wanted: str, job: Job | None) -> torch.device:
    """`auto`, `cpu` or `cuda` as a device of this rank.

    Raises: EngineError `unsupported_option` when a GPU is asked for and torch sees none.
    """
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise EngineError(
            "unsupported_option", f"option device: got {wanted!r}, but this interpreter's torch sees no GPU"
        )
    return torch.device("cuda", 0 if job is None else job.place.local_rank)


def operators_of(model: torch.nn.Module) -> list[str]:
    """Classes of modules without children. Not how many: a slice with fewer layers runs on the same side."""
    return sorted({type(module).__name__ for module in model.modules() if not list(module.children())})


def determinism() -> dict[str, Any]:
    return {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "matmul_precision": torch.get_float32_matmul_precision(),
    }


def volatile() -> dict[str, Any]:
    return {"environment": numeric_environment(os.environ), "process": os.getpid()}


def last_norm(norms: Iterable[tuple[str, torch.nn.Parameter]]) -> tuple[str, torch.nn.Parameter]:
    """Where the canary's ulp goes: the last norm outside of the layers, through which every logit passes."""
    candidates = [(name, weight) for name, weight in norms if weight.ndim == 1 and name.endswith("norm.weight")]
    if not candidates:
        raise EngineError("unsupported_model", "no norm weight was found to plant the canary's ulp in")
    return ([pair for pair in candidates if "layers." not in pair[0]] or candidates)[-1]


def _logprobs(logits: torch.Tensor, row: int, start: int, sequences: Sequences, index: int) -> torch.Tensor:
    """float32 log-softmax of the response tokens of one sequence, whose first token lies at [row, start]."""
    whole, first = sequences.whole(index), len(sequences.prompt(index))
    if first < 1:
        raise EngineError("request_refused", f"sequence {index} has no prompt token; its first token has no logprob")
    own = logits[row, start + first - 1 : start + len(whole) - 1].float()
    tokens = torch.tensor(whole[first:], device=logits.device)
    return torch.log_softmax(own, dim=-1).gather(-1, tokens[:, None])[:, 0]


def _rows(index: int, logprobs: torch.Tensor, sequences: Sequences, batch: int) -> dict[str, torch.Tensor]:
    response, first = sequences.response(index), len(sequences.prompt(index))
    count = len(response)
    return {
        "sequence": torch.full((count,), index, dtype=torch.int64),
        "position": torch.arange(first, first + count),
        "token_id": torch.tensor(response, dtype=torch.int64),
        "mask": torch.ones(count, dtype=torch.uint8),
        "logprob": logprobs.detach().cpu(),
        "phase": torch.full((count,), PREFILL, dtype=torch.uint8),
        "batch": torch.full((count,), batch, dtype=torch.int32),
    }


def _no_rows() -> dict[str, torch.Tensor]:
    whole = dict.fromkeys(("sequence", "position", "token_id"), torch.int64)
    types: Mapping[str, torch.dtype] = whole | {
        "mask": torch.uint8, "logprob": torch.float32, "phase": torch.uint8, "batch": torch.int32,
    }  # fmt: skip
    return {name: torch.empty(0, dtype=dtype) for name, dtype in types.items()}
