"""Find a checkpoint's class in transformers, load it whole or in part, and name its layers."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

OTHER_TOWERS = re.compile(r"vision|visual|audio|image|speech|mtp")


class UnknownClass(Exception):
    """This transformers has no class for the checkpoint."""


def read_config(path: str) -> dict[str, Any]:
    with open(os.path.join(path, "config.json"), encoding="utf-8") as file:
        config: dict[str, Any] = json.load(file)
    return config


def model_class(path: str) -> Any:
    """The class that `architectures` names; remote code is never run here."""
    import transformers

    config = read_config(path)
    known = config.get("model_type") in transformers.CONFIG_MAPPING
    names = config.get("architectures") or []
    found = next((getattr(transformers, name, None) for name in names if hasattr(transformers, name)), None)
    if known and found is None:
        found = next(iter(_auto_classes(config["model_type"])), None)
    if not known or found is None:
        version = transformers.__version__
        raise UnknownClass(f"transformers {version} has no class for {names or config.get('model_type')}")
    return found


def _auto_classes(model_type: str) -> Iterator[Any]:
    import transformers
    from transformers.models.auto import modeling_auto as auto

    for table in (auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES):
        if model_type in table:
            yield getattr(transformers, table[model_type])


def load(path: str, kind: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
    """(model in eval mode, loading info), on the CPU in the file's own dtypes."""
    model, info = kind.from_pretrained(
        path, dtype="auto", output_loading_info=True, attn_implementation="eager", local_files_only=True, **options
    )
    return model.eval(), info


def layers_of(model: Any, count: int) -> nn.ModuleList:
    """The decoder layers of the language model."""
    found = [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList)
        and name.split(".")[-1] == "layers"
        and len(module) == count
        and not OTHER_TOWERS.search(name)
    ]
    if not found:
        raise UnknownClass(f"{type(model).__name__} has no list of {count} decoder layers")
    return found[0]


class Skip:
    """The forward of a layer whose weights are not loaded: its input, in the form that the model's loop unpacks.

    `arity` is how many values the loop takes from a layer, 0 for a bare tensor.
    """

    def __init__(self) -> None:
        self.arity = 0

    def __call__(self, hidden_states: torch.Tensor, *_: Any, **options: Any) -> Any:
        # What goes from layer to layer beside the hidden state (GLM's prev_topk_indices) passes through too.
        beside = next((value for name, value in options.items() if name.startswith("prev_")), None)
        return (hidden_states, beside, None)[: self.arity] if self.arity else hidden_states


def empty_out(layer: nn.Module, shared: Collection[str]) -> None:
    """Take a layer's parameters away, so that none is allocated or read; `shared` parts, tied to others, stay.

    The modules stay, because model code looks into them (block types, buffers computed for every layer).
    """
    for name, module in layer.named_modules():
        if name.split(".")[0] not in shared:
            module._parameters.update(dict.fromkeys(module._parameters))
            module._is_hf_initialized = True
    layer.forward = Skip()


def partial_class(kind: Any, count: int, keep: Collection[int]) -> Any:
    """`kind` with only the layers in `keep`: the others have no weights, so none are read from the files."""

    class Partial(kind):  # type: ignore[misc]
        def __init__(self, config: Any, *args: Any, **options: Any) -> None:
            super().__init__(config, *args, **options)
            shared = tied_parts(self)
            for number, layer in enumerate(layers_of(self, count)):
                if number not in keep:
                    empty_out(layer, shared)

    # transformers treats a class of another module as remote code, and then leaves computed buffers empty.
    Partial.__name__, Partial.__qualname__, Partial.__module__ = kind.__name__, kind.__qualname__, kind.__module__
    return Partial


def tied_parts(model: nn.Module) -> set[str]:
    """Names of layer parts that are tied between layers (Zamba2's shared_transformer)."""
    tables = [getattr(module, "_tied_weights_keys", None) for module in model.modules()]
    keys = {key for table in tables if isinstance(table, dict) for pair in table.items() for key in pair}
    return {found[1] for key in keys if (found := re.search(r"layers\.\d+\.(\w+)", key))}


@contextmanager
def hooked(handles: list[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
