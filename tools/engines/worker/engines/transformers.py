"""The transformers engine: a model of `AutoModelForCausalLM`, scored without gradients or trained on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from .vllm_environment import ALWAYS, UNLESS_SET

os.environ.update({name: value for name, value in ALWAYS.items() if not name.startswith("VLLM")})
os.environ.setdefault("OMP_WAIT_POLICY", UNLESS_SET["OMP_WAIT_POLICY"])

import torch

from ..engine import Perturbation, Step
from ..hardware import hardware, versions
from ..job import Job
from ..ulp import add_ulps
from ..weights import CheckpointReader
from .forward import ForwardEngine, determinism, device_of, last_norm, operators_of, volatile
from .transformers_layout import Batch, prove_packing
from .transformers_model import load_model, tile_linears, unfused

PACKAGES = ("torch", "transformers", "safetensors", "flash-attn", "kernels", "accelerate")


class TransformersEngine(ForwardEngine):
    name = "transformers"

    def __init__(self, model_path: str, options: Mapping[str, Any], job: Job | None = None) -> None:
        super().__init__(job)
        self._path, self._options = model_path, dict(options)
        self._device = device_of(str(self._options.get("device", "auto")), job)
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
            "operators": operators_of(self._model),
            "determinism": determinism(),
            "batch_invariant": {"requested": self._invariant},
        }
        return {"stable": stable, "volatile": {**volatile(), "tiled_products": self._tiled}}

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

    def _prepare(self, step: Step) -> None:
        if step.get("packing") == "packed" and not self._packing_proved:
            prove_packing(self._model, self._device)
            self._packing_proved = True

    def _logits(self, batch: Batch) -> torch.Tensor:
        logits: torch.Tensor = self._model(**batch.inputs(self._device), use_cache=False).logits
        return logits

    def perturb(self, ulps: int) -> Perturbation:
        name, parameter = last_norm(self._model.named_parameters())
        return add_ulps(name, parameter.data, ulps)


ENGINE = TransformersEngine


def _is_tied(model: Any, name: str) -> bool:
    return name == "lm_head.weight" and model.get_output_embeddings().weight is model.get_input_embeddings().weight
