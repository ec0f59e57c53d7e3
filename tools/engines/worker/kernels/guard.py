"""Whether weights are the bytes they were: what every backward asks before it differentiates.

A tensor's version counter is not enough: `p.data.add_()` leaves it where it was, and the engine itself loads
weights that way. So the bytes are compared.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from .errors import WeightsChanged

Fingerprint = tuple[int, ...]

# Odd multipliers make the second sum depend on the position of each word.
_STRIDE = 2654435761


def fingerprint(tensor: Tensor) -> Fingerprint:
    """A checksum of the tensor's bytes. A change confined to one element is always seen (CRC-32, burst of 32 bits)."""
    flat = tensor.detach().reshape(-1)
    if flat.device.type == "cpu":
        return (flat.numel(), zlib.crc32(_memory(flat)))
    words = flat.view(torch.uint8).to(torch.int64)
    order = torch.arange(1, words.numel() + 1, device=words.device, dtype=torch.int64) * _STRIDE | 1
    return (flat.numel(), int(words.sum()), int((words * order).sum()))


def _memory(flat: Tensor) -> ctypes.Array[ctypes.c_char] | bytes:
    """The bytes in place. Not through numpy: that makes the storage unresizable, and FSDP2 frees its by resizing."""
    size = flat.numel() * flat.element_size()
    return (ctypes.c_char * size).from_address(flat.data_ptr()) if size else b""


class Watch:
    """Remembers named tensors' bytes and says later which changed.

    It holds the tensors themselves, so that a sharded parameter which is gathered again for the backward is
    checked in the gathered form that the backward will read.
    """

    def __init__(self, names: Sequence[str], tensors: Sequence[Tensor], prints: Sequence[Fingerprint] | None = None):
        self._names = tuple(names)
        self._tensors = tuple(tensors)
        self._prints = tuple(prints) if prints is not None else tuple(map(fingerprint, tensors))

    def changed(self) -> list[str]:
        now = zip(self._names, self._tensors, self._prints, strict=True)
        return [name for name, tensor, before in now if fingerprint(tensor) != before]

    def check(self, where: str) -> None:
        """Raises: WeightsChanged, naming every tensor whose bytes differ."""
        names = self.changed()
        if names:
            raise WeightsChanged(where, names)


class _CheckOnBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, watch: Watch, where: str, value: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.watch, ctx.where = watch, where
        # Not a view: FSDP2 hooks the output and warns of views.
        return value.clone()

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        ctx.watch.check(ctx.where)
        return None, None, grad


def check_on_backward(value: Tensor, watch: Watch, where: str = "model") -> Tensor:
    """`value`, with a check of `watch` that runs first in its backward.

    Needed beside the operators' own checks when activations are recomputed: the recomputation would record the
    changed weights as if they were the forward's.
    """
    return _CheckOnBackward.apply(watch, where, value)


def watch_parameters(named: Iterable[tuple[str, Tensor]]) -> Watch:
    """A watch over all `named` parameters; of a sharded one, over this rank's shard."""
    pairs = [(name, _local(tensor)) for name, tensor in named]
    return Watch([name for name, _ in pairs], [tensor for _, tensor in pairs])


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
