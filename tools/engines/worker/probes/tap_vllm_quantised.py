"""Activations that vLLM's CPU engine quantises before a product: payload and scales apart.

int8 with a scale a token (compressed-tensors W8A8), where oneDNN has the product. With AMX one kernel quantises and
multiplies, and shows neither: they are part of the projection then.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .record import Record
from .taps import Taps, layers_of

QUANTISES = "onednn_scaled_int8_quant"


def quantised(taps: Taps, model: torch.nn.Module) -> None:
    """`NAME.in0`, `NAME.scale` and `NAME.payload` for each projection NAME of a layer."""
    from vllm import _custom_ops as ops

    run = getattr(ops, QUANTISES, None)
    if run is None:
        return
    recorder = taps.recorder
    record = Record(recorder, recorder.point, lambda: len(recorder.keys))
    inside: list[tuple[int, str]] = []

    def watched(given: Tensor, *rest: Any, **options: Any) -> Any:
        if not inside:
            return run(given, *rest, **options)
        layer, name = inside[-1]
        recorder.point(layer, f"{name}.in0", given)
        made = run(given, *rest, **options)
        if made[1].numel() == len(given):
            record.quantised(layer, name, made[0], made[1], groups=1)
        return made

    taps.replace(ops, QUANTISES, watched)
    for layer, name, module in layers_of(model):
        own = name.rpartition(".")[2]
        if own.endswith("_proj"):
            _between(taps, module, inside, (layer, own))


def _between(taps: Taps, module: torch.nn.Module, inside: list[tuple[int, str]], at: tuple[int, str]) -> None:
    def leave(_: Any) -> None:
        inside.pop()

    taps.before(module, lambda args, kwargs: inside.append(at))
    taps.after(module, leave)
