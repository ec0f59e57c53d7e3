"""Reading weights back out of kernels that hold them packed, with the proof that what came out is what is inside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

ROWS_AT_ONCE = 256
_SUBNORMAL = {torch.bfloat16: 2.0**-126, torch.float32: 2.0**-126, torch.float16: 2.0**-14}


def identity_rows(module: Any) -> int:
    """The number of inputs of a linear layer."""
    return int(getattr(module, "input_size_per_partition", module.input_size))


def from_product(
    product: Callable[[torch.Tensor], torch.Tensor], inputs: int, dtype: torch.dtype
) -> torch.Tensor | str:
    """The weight [N, inputs] of `product`: x -> x @ weight.T, from products with rows of the identity.

    Exact: each sum has one term that is not zero, and products are accumulated with at least as many bits. What a sum
    cannot show is the sign of a zero, and numbers that the kernel flushes to zero: see `restored_zeros`.
    """
    columns = []
    with torch.no_grad():
        for start in range(0, inputs, ROWS_AT_ONCE):
            count = min(ROWS_AT_ONCE, inputs - start)
            rows = torch.zeros(count, inputs, dtype=dtype)
            rows[torch.arange(count), torch.arange(start, start + count)] = 1.0
            columns.append(product(rows))
    weight = torch.cat(columns).t().contiguous().to(dtype)
    if not torch.isfinite(weight).all():
        return "it holds values that are not finite, which a product spreads over other weights"
    return weight


def restored_zeros(value: torch.Tensor, stored: torch.Tensor) -> tuple[torch.Tensor, int]:
    """`value` with its zeros replaced by the checkpoint's, where that is a zero or a subnormal too; and how many."""
    if value.shape != stored.shape or value.dtype != stored.dtype or value.dtype not in _SUBNORMAL:
        return value, 0
    hidden = (value == 0) & (stored.abs() < _SUBNORMAL[value.dtype]) & (_bits(value) != _bits(stored))
    count = int(hidden.sum())
    return (torch.where(hidden, stored, value), count) if count else (value, 0)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int32 if tensor.element_size() == 4 else torch.int16)


@dataclass
class PackedExperts:
    """The grouped experts of one layer: their packing, and how wide the packing made them."""

    isa: str | None
    intermediate: int
    reason: str | None = None
    _orders: dict[tuple[int, ...], torch.Tensor | None] = field(default_factory=dict)
    _whole: dict[str, torch.Tensor | str] = field(default_factory=dict)

    @classmethod
    def of(cls, module: Any, platform: str) -> PackedExperts:
        sized = module.moe_config if hasattr(module.moe_config, "intermediate_size_per_partition") else module
        intermediate = int(sized.intermediate_size_per_partition)
        if platform != "cpu":
            return cls(None, intermediate)
        from .vllm_invariance import experts_kernel

        kernel = experts_kernel(module)
        isa = getattr(kernel, "isa", None)
        if isa is None or getattr(kernel, "_use_zentorch", False):
            return cls(None, intermediate, f"experts of {type(kernel).__name__} have no checked way back")
        return cls(isa, intermediate)

    def unpacked(self, leaf: str, parameter: torch.Tensor, expert: int) -> torch.Tensor | str:
        """One expert's matrix as it was before packing, [outputs, inputs]."""
        if self.reason is not None:
            return self.reason
        if self.isa is None or parameter.ndim != 3:
            return parameter.detach()[expert]
        if leaf not in self._whole:
            self._whole[leaf] = self._unpack(parameter.detach())
        whole = self._whole[leaf]
        return whole if isinstance(whole, str) else whole[expert]

    def shard(self, value: torch.Tensor, shard: str) -> torch.Tensor:
        """w1 (gate) and w3 (up) are halves of one matrix, padded to whole kernel tiles; w2 (down) has padded inputs."""
        if shard == "w2":
            return value[..., : self.intermediate] if value.ndim == 2 else value
        half = value.shape[0] // 2
        part = value[:half] if shard == "w1" else value[half:]
        return part[: self.intermediate]

    def _unpack(self, packed: torch.Tensor) -> torch.Tensor | str:
        from vllm._custom_ops import cpu_prepack_moe_weight

        order = self._order(packed[:1])
        if order is None:
            return f"the packing {self.isa!r} is not a permutation"
        plain = torch.empty_like(packed)
        plain.view(packed.shape[0], -1)[:, order] = packed.reshape(packed.shape[0], -1)
        if not torch.equal(_bits(cpu_prepack_moe_weight(plain, self.isa)), _bits(packed)):
            return f"packing the unpacked experts ({self.isa}) did not give the resident bytes"
        return plain

    def _order(self, one: torch.Tensor) -> torch.Tensor | None:
        """Where each packed element came from: the packing applied to the positions' own numbers, 16 bits at a time."""
        from vllm._custom_ops import cpu_prepack_moe_weight

        if tuple(one.shape) not in self._orders:
            positions = torch.arange(one.numel(), dtype=torch.int64)
            order = torch.zeros_like(positions)
            # 12 bits at a time and no higher: these patterns are small bf16 numbers, never a NaN.
            for shift in range(0, 36, 12):
                digits = ((positions >> shift) & 0xFFF).to(torch.int16).view(one.dtype).reshape(one.shape)
                packed = cpu_prepack_moe_weight(digits, self.isa)
                order |= packed.reshape(-1).view(torch.int16).to(torch.int64) << shift
            whole = torch.equal(order.sort().values, positions)
            self._orders[tuple(one.shape)] = order if whole else None
        return self._orders[tuple(one.shape)]
