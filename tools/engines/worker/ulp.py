"""One unit in the last place added to one element of a tensor, in place, with a way back that is checked."""

from __future__ import annotations

import torch

from .engine import EngineError, Perturbation

_BITS = {
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}


def add_one_ulp(name: str, tensor: torch.Tensor) -> Perturbation:
    """Changes the element of greatest magnitude by one ulp towards zero, so that it stays finite; a zero away from it.

    The greatest, because its ulp is the greatest: the change has the best chance to survive later rounding.

    Raises: EngineError `canary_not_restored` from `undo` when the bytes are not what they were.
    """
    flat = tensor.detach().view(-1)
    bits = flat.view(_BITS[tensor.dtype])
    index = int(flat.float().abs().argmax())
    before, original = float(flat[index]), int(bits[index])
    everything = bits.clone()
    # Zero has no neighbour towards zero: one below its bits is a NaN.
    bits[index] = original + (1 if before == 0 else -1)

    def undo() -> None:
        bits[index] = original
        if not torch.equal(bits, everything):
            raise EngineError("canary_not_restored", f"{name}: its bytes are not what they were before the canary")

    return Perturbation(name, index, before, float(flat[index]), undo)
