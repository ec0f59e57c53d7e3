"""A few units in the last place taken from one element of a tensor, in place, with a way back that is checked."""

from __future__ import annotations

import torch

from .engine import EngineError, Perturbation

_BITS = {
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}


def add_ulps(name: str, tensor: torch.Tensor, ulps: int) -> Perturbation:
    """Changes the element of greatest magnitude by so many ulps towards zero, as far as there are so many, so that it
    stays finite; a zero away from it.

    The greatest, because its ulp is the greatest: the change has the best chance to survive later rounding.

    Raises: EngineError `canary_not_restored` from `undo` when the bytes are not what they were.
    """
    flat = tensor.detach().view(-1)
    bits = flat.view(_BITS[tensor.dtype])
    index = int(flat.float().abs().argmax())
    before, original = float(flat[index]), int(bits[index])
    everything = bits.clone()
    # Zero has no neighbour towards zero: one below its bits is a NaN.
    above = original & torch.iinfo(bits.dtype).max
    bits[index] = original + (ulps if before == 0 else -min(ulps, above))

    def undo() -> None:
        bits[index] = original
        if not torch.equal(bits, everything):
            raise EngineError("canary_not_restored", f"{name}: its bytes are not what they were before the canary")

    return Perturbation(name, index, before, float(flat[index]), undo, ulps)
