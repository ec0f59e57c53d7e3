"""Engine `vllm_kernels`: a trainer with gradients whose forward values are the rollout engine's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import engine as base
from ..job import Step
from ..sequences import Sequences
from . import checkpoint
from .errors import KernelError
from .model import CausalLM
from .options import Options, read_options
from .stack import build_stack
from .table import Operators

KINDS = ("prefill", "train_forward")


class VllmKernels:
    """Scores tokens with `CausalLM`. One rank; sharded trainers call the same table (examples/fsdp2_trainer.py)."""

    def __init__(self, setup: base.Setup) -> None:
        if setup.place.world_size != 1:
            raise base.EngineError(
                "world_size_unsupported",
                f"launcher: {setup.place.world_size} ranks; vllm_kernels runs on one; use the local launcher",
            )
        started = time.monotonic()
        self._options: Options = read_options(setup.options)
        stack = build_stack(
            setup.model_path, batch_invariant=self._options.batch_invariant, engine_options=self._options.engine
        )
        self._operators = Operators(stack)
        self._model = CausalLM(
            self._operators, master_dtype=self._options.master_dtype, recompute=self._options.recompute
        )
        checkpoint.load(self._model, setup.model_path)
        self._seconds = time.monotonic() - started

    def describe(self) -> dict[str, Any]:
        return {"stable": self._stable(), "volatile": {"load_seconds": self._seconds}}

    def _stable(self) -> dict[str, Any]:
        import vllm

        config = self._operators.stack.vllm_config
        return {
            "engine": "vllm_kernels",
            "versions": {"torch": torch.__version__, "vllm": vllm.__version__},
            "operators": self._operators.describe(),
            "batch_invariant": self._options.batch_invariant,
            "dtype": str(self._model.dtype),
            "master_dtype": str(self._model.master_dtype),
            "recompute": self._options.recompute,
            "kv_cache_dtype": config.cache_config.cache_dtype,
            "block_size": config.cache_config.block_size,
            "max_model_len": self._operators.stack.max_model_len,
            "threads": torch.get_num_threads(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        }

    def weights(self) -> Iterable[tuple[str, Tensor]]:
        return checkpoint.exported(self._model).items()

    def run(self, step: Step, sequences: Sequences) -> base.StepRows:
        if step.kind not in KINDS:
            raise base.EngineError(
                "step_unsupported", f"step {step.name}: got {step.kind}; vllm_kernels runs {', '.join(KINDS)}"
            )
        train = step.kind == "train_forward"
        self._model.train(train)
        started = time.monotonic()
        columns, passes = self._score(step, sequences, train)
        computation = {
            "kind": "vllm_kernels",
            "passes": passes,
            "mode": "train" if train else "eval",
            "grad": train,
            "backward": train,
            "seconds": time.monotonic() - started,
            "tokens": sum(len(sequences.whole(i)) for group in step.groups for i in group),
        }
        return base.StepRows(columns, computation, info=self._gradients() if train else {})

    def _score(self, step: Step, sequences: Sequences, train: bool) -> tuple[dict[str, Tensor], int]:
        rows: list[dict[str, Tensor]] = []
        passes = 0
        self._model.zero_grad(set_to_none=True)
        for group in step.groups:
            for batch in [[index] for index in group] if step.packing == "single" else [group]:
                found = self._forward(batch, sequences, step.packing == "padded", train)
                rows += found
                passes += 1
        return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}, passes

    def _forward(self, batch: Sequence[int], sequences: Sequences, pad: bool, train: bool) -> list[dict[str, Tensor]]:
        tokens = [torch.tensor(sequences.whole(index)) for index in batch]
        with torch.set_grad_enabled(train):
            scored = score(self._model, tokens, padded=pad)
            rows = [_rows(i, t, s, sequences, len(batch)) for i, t, s in zip(batch, tokens, scored, strict=True)]
            if train:
                # The policy-gradient loss with advantage 1: every response token's logprob is in the graph.
                (-torch.cat([row["logprob"] for row in rows]).sum()).backward()  # type: ignore[no-untyped-call]
        return rows

    def _gradients(self) -> dict[str, Any]:
        grads = {name: p.grad for name, p in self._model.named_masters() if p.requires_grad}
        reached = {name: g for name, g in grads.items() if g is not None}
        return {
            "gradients": {
                "parameters": len(grads),
                "unreached": sorted(set(grads) - set(reached)),
                "not_finite": sorted(name for name, g in reached.items() if not bool(g.isfinite().all())),
                "zero": sorted(name for name, g in reached.items() if not bool(g.any())),
            }
        }

    def perturb(self) -> Callable[[], None]:
        """One ulp of the engine's dtype on the final norm's largest weight: every logit passes through it."""
        weight = self._model.model.norm.weight
        index = int(weight.detach().abs().argmax())
        before = weight.detach()[index].clone()
        after = torch.nextafter(before.to(self._model.dtype), torch.tensor(float("inf"), dtype=self._model.dtype))

        def undo() -> None:
            with torch.no_grad():
                weight[index] = before

        undo.info = {  # type: ignore[attr-defined]
            "weight": "model.norm.weight",
            "index": index,
            "before": float(before),
            "after": float(after),
        }
        with torch.no_grad():
            weight[index] = after.to(weight.dtype)
        return undo

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
        "phase": torch.zeros(count, dtype=torch.uint8),
        "batch": torch.full((count,), company, dtype=torch.int32),
    }


ENGINE = VllmKernels

__all__ = ["ENGINE", "KernelError", "VllmKernels", "score"]
