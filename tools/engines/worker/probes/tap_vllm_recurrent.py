"""The recurrent layers of vLLM's Qwen3-Next and Qwen3.5: what is convolved, and what the delta rule makes of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .taps import Taps


def recurrent(taps: Taps, layer: int, module: Any) -> None:
    """Rows that decode come first, and are convolved by themselves: what is split afterwards has both in turn."""
    split, project = module.rearrange_mixed_qkv, module._output_projection
    parts: list[Tensor] = []

    def convolved(mixed: Tensor | None) -> Any:
        if mixed is not None:
            parts.append(mixed)
        if parts and sum(map(len, parts)) >= len(taps.recorder.keys):
            taps.recorder.point(layer, "conv_out", parts[0] if len(parts) == 1 else torch.cat(parts))
            parts.clear()
        return split(mixed)

    def projected(core: Tensor, *rest: Any) -> Any:
        taps.recorder.point(layer, "ssm_out", core.flatten(1), raw=core)
        return project(core, *rest)

    taps.replace(module, "rearrange_mixed_qkv", convolved)
    taps.replace(module, "_output_projection", projected)
