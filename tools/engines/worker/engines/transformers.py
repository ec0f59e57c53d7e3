"""The transformers engine: a model of `AutoModelForCausalLM`, scored without gradients or trained on."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from .vllm_environment import ALWAYS, UNLESS_SET

os.environ.update({name: value for name, value in ALWAYS.items() if not name.startswith("VLLM")})
os.environ.setdefault("OMP_WAIT_POLICY", UNLESS_SET["OMP_WAIT_POLICY"])

import torch

from ..engine import PREFILL, EngineError, Perturbation, Step, StepRows
from ..gradients import gradient_report
from ..hardware import hardware, versions
from ..job import Job
from ..sequences import Sequences
from ..ulp import add_one_ulp
from ..weights import CheckpointReader
from .transformers_layout import Batch, batches_of, prove_packing
from .transformers_model import load_model, tile_linears, unfused
from .vllm_environment import numeric_environment

PACKAGES = ("torch", "transformers", "safetensors", "flash-attn", "kernels", "accelerate")


class TransformersEngine:
    """Data-parallel over ranks: rank r computes the groups r, r + world size, …; nothing is reduced across ranks."""

    def __init__(self, model_path: str, options: Mapping[str, Any], job: Job | None = None) -> None:
        self._path, self._options = model_path, dict(options)
        self._place = (0, 1) if job is None else (job.place.rank, job.place.world_size)
        self._progress = (lambda *_: None) if job is None else job.progress
        self._device = _device(str(self._options.get("device", "auto")), job)
        self._model = load_model(model_path, self._options, self._device)
        self._invariant = bool(self._options.get("batch_invariant", False))
        self._tiled = tile_linears(self._model, self._device) if self._invariant else 0
        self._packing_proved = False

    def describe(self) -> dict[str, dict[str, Any]]:
        config = self._model.config
        stable = {
            "platform": self._device.type,
            "versions": versions(PACKAGES),
            "hardware": hardware(self._device.type),
            "threads": torch.get_num_threads(),
            "model": {
                "class": f"{type(self._model).__module__}.{type(self._model).__name__}",
                "dtype": str(self._model.dtype).removeprefix("torch."),
                "attention": config._attn_implementation,
                "experts": getattr(config, "_experts_implementation", None),
                "gradient_checkpointing": bool(getattr(self._model, "is_gradient_checkpointing", False)),
            },
            "operators": _operators(self._model),
            "determinism": {
                "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
                "matmul_precision": torch.get_float32_matmul_precision(),
            },
            "batch_invariant": {"requested": self._invariant, "tiled_products": self._tiled},
        }
        return {"stable": stable, "volatile": {"environment": numeric_environment(os.environ), "process": os.getpid()}}

    def weights(self) -> Iterator[tuple[str, Any]]:
        checkpoint = CheckpointReader(self._path)
        seen = set()
        for name, tensor in self._model.state_dict(keep_vars=False).items():
            for own, piece in unfused(name, tensor):
                # A tied head is the embedding itself: the checkpoint's own names only.
                if own in checkpoint or not _is_tied(self._model, own):
                    seen.add(own)
                    yield own, piece
        for name in sorted(set(checkpoint) - seen):
            yield name, "the model holds no tensor that bitgate knows to be this one"

    def run(self, step: Step, sequences: Sequences) -> StepRows:
        if step["kind"] not in ("prefill", "train_forward"):
            raise EngineError(
                "unsupported_step",
                f"step {step['name']}: the transformers engine has no {step['kind']}; it scores and trains",
            )
        train = step["kind"] == "train_forward"
        rank, world = self._place
        groups = step["groups"][rank::world]
        if step.get("packing") == "packed" and not self._packing_proved:
            prove_packing(self._model, self._device)
            self._packing_proved = True
        self._model.train(train)
        self._model.zero_grad(set_to_none=True)
        started = time.monotonic()
        columns, passes = self._score(groups, step, sequences, train)
        info: dict[str, Any] = {"groups": len(groups)} | (self._training_info() if train else {})
        computation = {
            "kind": "forward",
            "passes": passes,
            "mode": "train" if train else "eval",
            "grad": train,
            "backward": train,
            "seconds": time.monotonic() - started,
            "tokens": len(columns["sequence"]),
        }
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
            logits = self._model(**batch.inputs(self._device), use_cache=False).logits
            scored = {
                place.sequence: _logprobs(logits, place.row, place.start, sequences, place.sequence)
                for place in batch.places
            }
            if train:
                # The policy-gradient loss with advantage 1: every response token's logprob is in its graph.
                (-torch.cat(list(scored.values())).mean()).backward()
        return [_rows(i, values, sequences, len(scored)) for i, values in scored.items() if i not in company]

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

    def perturb(self) -> Perturbation:
        candidates = [(n, p) for n, p in self._model.named_parameters() if p.ndim == 1 and n.endswith("norm.weight")]
        outside = [(n, p) for n, p in candidates if "layers." not in n]
        if not candidates:
            raise EngineError("unsupported_model", "no norm weight was found to plant the canary's ulp in")
        name, parameter = (outside or candidates)[-1]
        return add_one_ulp(name, parameter.data)

    def close(self) -> None:
        self._model.zero_grad(set_to_none=True)


ENGINE = TransformersEngine


def _device(wanted: str, job: Job | None) -> torch.device:
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise EngineError(
            "unsupported_option", f"option device: got {wanted!r}, but this interpreter's torch sees no GPU"
        )
    return torch.device("cuda", 0 if job is None else job.place.local_rank)


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
    types = whole | {"mask": torch.uint8, "logprob": torch.float32, "phase": torch.uint8, "batch": torch.int32}
    return {name: torch.empty(0, dtype=dtype) for name, dtype in types.items()}


def _operators(model: torch.nn.Module) -> dict[str, int]:
    found: dict[str, int] = {}
    for module in model.modules():
        if not list(module.children()):
            found[type(module).__name__] = found.get(type(module).__name__, 0) + 1
    return dict(sorted(found.items()))


def _is_tied(model: Any, name: str) -> bool:
    return name == "lm_head.weight" and model.get_output_embeddings().weight is model.get_input_embeddings().weight
