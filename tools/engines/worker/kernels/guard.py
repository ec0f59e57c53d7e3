"""Whether weights are the bytes they were: what every backward asks before it differentiates.

A tensor's version counter is not enough: `p.data.add_()` leaves it where it was, and the engine itself loads
weights that way. So the bytes are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from .errors import WeightsChanged

Fingerprint = tuple[int, ...]

_BLOCK = 1024


def fingerprint(tensor: Tensor) -> Fingerprint:
    """A checksum of the tensor's bytes, where they are.

    Their 64-bit words in rows of 1024: the sums of rows and of columns, each weighted by odd numbers, modulo 2^64. A
    change in one word always shows, and so does moving words to another place. Several times faster than a CRC.
    """
    words, tail = _words(tensor.detach().reshape(-1).view(torch.uint8))
    whole = words[: words.numel() // _BLOCK * _BLOCK].view(-1, _BLOCK)
    rest = torch.cat([words[whole.numel() :], tail.to(torch.int64)])
    return (tensor.numel(), *(_weighted(part) for part in (whole.sum(1), whole.sum(0), rest)))


def _words(flat: Tensor) -> tuple[Tensor, Tensor]:
    if flat.data_ptr() % 8 or flat.storage_offset() % 8:
        flat = flat.clone()
    even = flat.numel() // 8 * 8
    return flat[:even].view(torch.int64), flat[even:]


def _weighted(sums: Tensor) -> int:
    odd = 2 * torch.arange(sums.numel(), device=sums.device, dtype=torch.int64) + 1
    return int((sums * odd).sum())


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


class ModuleWatch(Watch):
    """A watch over a module's parameters that also sees one replaced by another object, which no bytes show."""

    def __init__(self, named: Callable[[], Iterable[tuple[str, Tensor]]]) -> None:
        self._now, self._then = named, dict(named())
        super().__init__(list(self._then), list(self._then.values()))

    def changed(self) -> list[str]:
        return sorted({*super().changed(), *_replaced(self._then, dict(self._now()))})


def _replaced(then: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> list[str]:
    return [name for name in {*then, *now} if then.get(name) is not now.get(name)]


def watch_parameters(named: Iterable[tuple[str, Tensor]]) -> Watch:
    """A watch over all `named` parameters; of a sharded one, over this rank's shard."""
    pairs = [(name, _local(tensor)) for name, tensor in named]
    return Watch([name for name, _ in pairs], [tensor for _, tensor in pairs])


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
