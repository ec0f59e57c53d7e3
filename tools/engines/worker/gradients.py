"""What a backward reached: every trainable parameter must have a gradient that is finite and somewhere not zero."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def gradient_report(parameters: Iterable[tuple[str, torch.Tensor]]) -> dict[str, Any]:
    """Counts, and the names of parameters whose gradient is missing, not finite, or zero everywhere."""
    trainable = [(name, parameter.grad) for name, parameter in parameters if parameter.requires_grad]
    reached = [(name, grad) for name, grad in trainable if grad is not None]
    return {
        "parameters": len(trainable),
        "unreached": sorted(name for name, grad in trainable if grad is None),
        "not_finite": sorted(name for name, grad in reached if not bool(torch.isfinite(grad).all())),
        "zero": sorted(name for name, grad in reached if not bool(grad.any())),
    }
