"""Loading a transformers model, fused parameters under the checkpoint's names, and linears in fixed tiles."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn import functional as F

from ..engine import EngineError
from ..tiles import tiled_rows
from ..weights import CheckpointReader

ARGUMENTS = ("attn_implementation", "experts_implementation")


def load_model(path: str, options: Mapping[str, Any], device: torch.device) -> Any:
    """The model on its device, with every checkpoint tensor used and none missing.

    Raises: EngineError `model_not_found`, `unsupported_model`, `unsupported_option`, `checkpoint_mismatch`.
    """
    if not os.path.isfile(os.path.join(path, "config.json")):
        raise EngineError("model_not_found", f"model path {path!r} has no config.json; correct [model.…] path")
    import transformers

    arguments = {name: options[name] for name in ARGUMENTS if name in options}
    try:
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            path,
            dtype=_dtype(path, str(options.get("dtype", "auto"))),
            output_loading_info=True,
            local_files_only=True,
            **arguments,
        )
    except ImportError as error:
        raise EngineError("unsupported_option", f"options {arguments}: {error}") from error
    except (ValueError, KeyError, NotImplementedError) as error:
        raise _explained(error, path, arguments) from error
    _refuse_mismatch(path, report)
    if options.get("gradient_checkpointing"):
        model.gradient_checkpointing_enable()
    return model.to(device)


def _dtype(path: str, wanted: str) -> Any:
    """`auto` is the checkpoint's own: what its tensors have, not what its config.json says."""
    if wanted != "auto":
        return getattr(torch, wanted)
    reader = CheckpointReader(path)
    name = next((name for name in reader if name.endswith("embed_tokens.weight")), next(iter(reader), None))
    if name is None:
        raise EngineError("model_not_found", f"model path {path!r} has no safetensors file")
    return reader.tensor(name).dtype


def _explained(error: Exception, path: str, arguments: Mapping[str, Any]) -> EngineError:
    text = str(error).strip().splitlines()[0][:600] if str(error).strip() else type(error).__name__
    named = [f"{name} = {value!r}" for name, value in arguments.items() if str(value) in str(error)]
    if named or "attn_implementation" in text or "attention" in text.lower():
        return EngineError("unsupported_option", f"{', '.join(named) or 'attn_implementation'}: {text}")
    return EngineError("unsupported_model", f"transformers cannot load {path}: {text}")


def _refuse_mismatch(path: str, report: Mapping[str, Any]) -> None:
    wrong = {
        kind: sorted(map(str, report[kind]))
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")
        if report[kind]
    }
    if wrong:
        shown = "; ".join(
            f"{kind}: {', '.join(names[:5])}{' …' if len(names) > 5 else ''}" for kind, names in wrong.items()
        )
        raise EngineError("checkpoint_mismatch", f"{path}: its tensors are not this architecture's: {shown}")


def unfused(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """A parameter under the checkpoint's names: grouped experts [E, …] are one matrix an expert there."""
    stem, _, leaf = name.rpartition(".")
    if not stem.endswith("experts") or tensor.ndim != 3 or leaf not in ("gate_up_proj", "down_proj"):
        yield name, tensor
        return
    for expert, matrix in enumerate(tensor):
        if leaf == "down_proj":
            yield f"{stem}.{expert}.down_proj.weight", matrix
        else:
            gate, up = matrix.chunk(2)
            yield f"{stem}.{expert}.gate_proj.weight", gate
            yield f"{stem}.{expert}.up_proj.weight", up


def tile_linears(model: torch.nn.Module, device: torch.device) -> int:
    """Run every linear in fixed row tiles; returns how many there are.

    Raises: EngineError `unsupported_option` where that would not reach every matrix product.
    """
    if device.type != "cpu":
        raise EngineError(
            "unsupported_option",
            "batch_invariant: on a GPU it means vLLM's own mode, which transformers does not have; use vllm_kernels",
        )
    grouped = [name for name, parameter in model.named_parameters() if parameter.ndim == 3]
    if grouped:
        raise EngineError(
            "unsupported_option",
            f"batch_invariant: grouped experts ({grouped[0]}, …) are not linears; use vllm_kernels",
        )
    linears = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    for linear in linears:
        linear.forward = _Tiled(linear)
    return len(linears)


class _Tiled:
    """A linear's forward in tiles; gradients flow through the tiles to the same weight."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        self._linear = linear

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return tiled_rows(lambda tile: F.linear(tile, self._linear.weight, self._linear.bias), x)
