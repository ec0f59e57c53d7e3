"""The Megatron-Core engine: a GPTModel with the checkpoint's weights, scored without gradients or trained on."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any

from .vllm_environment import ALWAYS, UNLESS_SET

os.environ.update({name: value for name, value in ALWAYS.items() if not name.startswith("VLLM")})
os.environ.setdefault("OMP_WAIT_POLICY", UNLESS_SET["OMP_WAIT_POLICY"])

import torch

from ..engine import EngineError, Perturbation, Step
from ..hardware import hardware, versions
from ..job import Job
from ..ulp import add_ulps
from .forward import ForwardEngine, determinism, device_of, last_norm, operators_of, volatile
from .megatron_model import build, quiet, standing_in, version
from .megatron_weights import exported, load
from .transformers_layout import Batch, Place

PACKAGES = ("torch", "megatron-core", "transformer-engine", "apex", "flash-attn", "safetensors")
PLAIN = (bool, int, float, str, list)
BY_DEPTH = ("num_layers", "moe_layer_freq")


class MegatronEngine(ForwardEngine):
    """Every rank holds a whole model: tensor, pipeline and expert parallel sizes are 1."""

    name = "megatron"

    def __init__(self, model_path: str, options: Mapping[str, Any], job: Job | None = None) -> None:
        super().__init__(job)
        self._path = model_path
        self._device = device_of(str(options.get("device", "auto")), job)
        try:
            with quiet():
                import megatron.core  # noqa: F401
        except ModuleNotFoundError as error:
            raise EngineError(
                "unsupported_option", f"engine megatron: {error}; pip install --no-deps megatron-core there"
            ) from error
        self._built = build(model_path, options, self._device)
        self._model, self._sizes = self._built.model, self._built.sizes
        self._packing_proved = False
        self._proved = load(self._model, model_path, self._sizes, self._built.padded)

    def describe(self) -> dict[str, dict[str, Any]]:
        built = self._built
        stable = {
            "platform": self._device.type,
            "versions": versions(PACKAGES),
            "hardware": hardware(self._device.type),
            "threads": torch.get_num_threads(),
            "model": {
                "class": f"{type(self._model).__module__}.{type(self._model).__name__}",
                "dtype": str(built.dtype).removeprefix("torch."),
                "spec": built.spec,
                "attention": type(self._attention()).__name__,
                "vocabulary": {"of_the_checkpoint": self._sizes.vocabulary, "padded_to": built.padded},
            },
            "config": _set_fields(built.config),
            "gpt": dict(self._sizes.gpt),
            "operators": operators_of(self._model),
            "determinism": determinism(),
            "cuda_stand_ins": self._device.type == "cpu",
        }
        return {"stable": stable, "volatile": {**volatile(), "proved_tensors": self._proved}}

    def _attention(self) -> torch.nn.Module:
        module: torch.nn.Module = self._model.decoder.layers[0].self_attention.core_attention
        return module

    def weights(self) -> Iterator[tuple[str, Any]]:
        return exported(self._model, self._path, self._sizes, self._built.padded)

    def _prepare(self, step: Step) -> None:
        if step.get("packing") != "packed" or self._packing_proved:
            return
        if self._built.spec == "local":
            raise EngineError(
                "unsupported_packing",
                f"packing 'packed': Megatron-Core {version()}'s local layers refuse packed sequences (thd) in "
                f"{type(self._attention()).__name__}; use 'padded' or 'single', or transformer_impl = "
                "'transformer_engine' on a GPU",
            )
        self._prove_packing()

    def _prove_packing(self) -> None:
        """Another first sequence must leave the second's logits alone."""
        vocabulary, places = self._sizes.vocabulary, [Place(0, 0, 0), Place(1, 0, 24)]
        positions = torch.arange(24).repeat(2)[None]
        heads = [torch.arange(k, k + 24) % vocabulary for k in (1, 7)]
        tokens = [torch.cat([head, torch.arange(3, 27) % vocabulary])[None] for head in heads]
        with torch.no_grad():
            seen = [self._logits(Batch(row, positions, None, places))[0, 24:] for row in tokens]
        if not torch.equal(*seen):
            raise EngineError(
                "unsupported_packing",
                "packing 'packed': a packed sequence sees its neighbour; use 'padded' or 'single'",
            )
        self._packing_proved = True

    def _logits(self, batch: Batch) -> torch.Tensor:
        """[rows, columns, vocabulary]: the lanes that pad the vocabulary take part in nothing after this."""
        tokens, positions = batch.tokens.to(self._device), batch.positions.to(self._device)
        with standing_in(self._device):
            logits: torch.Tensor = self._built.net(
                tokens, positions, self._mask(batch), packed_seq_params=self._packed(batch)
            )
        return logits[..., : self._sizes.vocabulary]

    def _mask(self, batch: Batch) -> torch.Tensor | None:
        """True where a query may not look. Causal: padding is on the right, where no real token looks."""
        if self._built.spec == "transformer_engine":
            return None
        columns = batch.tokens.shape[1]
        return torch.ones(columns, columns, dtype=torch.bool, device=self._device).triu(1)[None, None]

    def _packed(self, batch: Batch) -> Any:
        """Where the sequences of a packed row begin and end (thd); None for one sequence a row."""
        starts = [place.start for place in batch.places]
        if not any(starts):
            return None
        from megatron.core.packed_seq_params import PackedSeqParams

        edges = torch.tensor([*starts, batch.tokens.shape[1]], dtype=torch.int32, device=self._device)
        longest = int(edges.diff().max())
        return PackedSeqParams(
            qkv_format="thd", cu_seqlens_q=edges, cu_seqlens_kv=edges, max_seqlen_q=longest, max_seqlen_kv=longest
        )

    def _backward(self, loss: torch.Tensor) -> None:
        with standing_in(self._device):
            loss.backward()

    def perturb(self, ulps: int) -> Perturbation:
        _, parameter = last_norm(self._model.named_parameters())
        return add_ulps("model.norm.weight", parameter.data, ulps)

    def close(self) -> None:
        from megatron.core import parallel_state

        super().close()
        if torch.distributed.is_initialized():
            parallel_state.destroy_model_parallel()
            torch.distributed.destroy_process_group()


ENGINE = MegatronEngine


def _set_fields(config: Any) -> dict[str, Any]:
    """The fields of a TransformerConfig that are not at their defaults, as far as JSON has their types.

    Those that grow with the number of layers stay out: a slice with fewer of them runs on the same side.
    """
    found = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name not in BY_DEPTH and isinstance(value, PLAIN) and value != field.default:
            found[field.name] = value
    return dict(sorted(found.items()))
