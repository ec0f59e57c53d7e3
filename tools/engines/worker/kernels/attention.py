"""Rotary embedding and attention: the engine's own layer, backend and metadata builder over a private KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..tiles_attention import as_tiles
from .errors import OperatorWithoutEntry, SequenceTooLong
from .identity import attention_name, custom_op_name
from .stack import Stack
from .visible import Call, from_graph, visible


@dataclass(frozen=True)
class Batch:
    """Sequences laid one after the other, and where each token's key and value go in the private cache."""

    lengths: tuple[int, ...]
    positions: Tensor
    starts: Tensor
    seq_lens: Tensor
    block_table: Tensor
    slots: Tensor
    blocks: int


def pack(lengths: Sequence[int], *, block_size: int, longest: int) -> Batch:
    """Layout of sequences of `lengths` tokens, each in blocks of its own.

    Raises: SequenceTooLong.
    """
    for index, length in enumerate(lengths):
        if length > longest:
            raise SequenceTooLong(index, length, longest)
    needed = [-(-length // block_size) for length in lengths]
    first = [sum(needed[:i]) for i in range(len(needed))]
    table = torch.zeros(len(lengths), max(needed), dtype=torch.int32)
    for row, (start, count) in enumerate(zip(first, needed, strict=True)):
        table[row, :count] = torch.arange(start, start + count, dtype=torch.int32)
    return Batch(
        lengths=tuple(lengths),
        positions=torch.cat([torch.arange(length) for length in lengths]),
        starts=torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32),
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        block_table=table,
        slots=torch.cat([torch.arange(n) + start * block_size for n, start in zip(lengths, first, strict=True)]),
        blocks=sum(needed),
    )


class Rope:
    """The rotary embedding that vLLM's `get_rope` builds, on packed queries and keys."""

    def __init__(self, stack: Stack, head_dim: int) -> None:
        from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding, get_rope

        config = stack.model_config
        with stack.active():
            self._layer = get_rope(
                head_dim, max_position=config.max_position_embeddings, rope_parameters=config.rope_parameters
            )
        if type(self._layer).forward_static is not RotaryEmbedding.forward_static:
            raise OperatorWithoutEntry(
                "rotary_embedding", type(self._layer).__name__, "add a row whose backward is that layer's rotation"
            )

    @property
    def identity(self) -> str:
        return custom_op_name(self._layer)

    def __call__(self, positions: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """positions [T], q [T, Hq*D], k [T, Hkv*D] -> the same shapes."""

        def value(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
            # The CPU and CUDA kernels rotate in place; the arguments are saved for the backward.
            q, k = (t.clone(memory_format=torch.contiguous_format) for t in (q, k))
            return tuple(self._layer(positions, q, k))

        def graph(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
            layer = self._layer
            cache = layer._match_cos_sin_cache_dtype(q).to(q.dtype)
            return layer.forward_static(positions, q, k, layer.head_size, layer.rotary_dim, cache, layer.is_neox_style)  # type: ignore[no-any-return]

        return visible(Call("rotary_embedding", value, from_graph(graph)), q, k)  # type: ignore[no-any-return]


class Attention:
    """Causal attention through the engine's backend: write keys and values to the cache, then attend from it.

    The cache has the engine's block layout and dtype, so that a quantised cache rounds here as it does there; the
    backward is that of unquantised attention (the rounding counts as identity).
    """

    def __init__(self, stack: Stack, *, heads: int, kv_heads: int, head_dim: int, scale: float) -> None:
        from vllm.model_executor.layers.attention import Attention as EngineAttention

        prefix = f"bitgate.{heads}.{kv_heads}.{head_dim}.attn"
        config = stack.vllm_config
        with stack.active():
            config.compilation_config.static_forward_context.pop(prefix, None)
            self._layer: Any = EngineAttention(
                heads, head_dim, scale, num_kv_heads=kv_heads, cache_config=config.cache_config, prefix=prefix
            )
            self._spec = self._layer.get_kv_cache_spec(config)
            builder = self._layer.attn_backend.get_builder_cls()
            self._builder = builder(self._spec, [prefix], config, torch.device("cpu"))
        self._heads, self._kv_heads, self._head_dim, self._scale = heads, kv_heads, head_dim, scale
        self._longest, self._tiled = stack.max_model_len, stack.batch_invariant
        self._cache = torch.zeros(0)
        self._metadata: tuple[Batch, Any] | None = None

    @property
    def identity(self) -> str:
        return attention_name(self._layer, self._spec.block_size, self._tiled)

    def pack(self, lengths: Sequence[int]) -> Batch:
        return pack(lengths, block_size=self._spec.block_size, longest=self._longest)

    def __call__(self, batch: Batch, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [T, Hq*D], k and v [T, Hkv*D], T = sum(batch.lengths) -> [T, Hq*D]."""

        def value(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return self._attend(batch, q, k, v)

        def graph(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return reference_attention(batch.lengths, q, k, v, self._head_dim, self._scale)

        return visible(Call("attention", value, from_graph(graph)), q, k, v)

    def _attend(self, batch: Batch, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        key, value = (t.reshape(-1, self._kv_heads, self._head_dim) for t in (k, v))
        cache = self._fresh_cache(batch.blocks)
        impl, layer = self._layer.impl, self._layer
        impl.do_kv_cache_update(layer, key, value, cache, batch.slots)
        output = torch.empty(q.shape[0], self._heads, self._head_dim, dtype=q.dtype)
        query = q.reshape(-1, self._heads, self._head_dim)
        impl.forward(layer, query, key, value, cache, self._metadata_of(batch), output)
        return output.reshape(q.shape)

    def _fresh_cache(self, blocks: int) -> Tensor:
        """Zeroed blocks, as the engine zeroes the blocks it hands out: a masked slot must not hold a NaN."""
        spec = self._spec
        if self._cache.numel() == 0 or self._cache.shape[0] < blocks:
            shape = (blocks, self._kv_heads, spec.block_size, 2 * self._head_dim)
            self._cache = torch.zeros(shape, dtype=spec.dtype)
            return self._cache
        used = self._cache[:blocks]
        return used.zero_()

    def _metadata_of(self, batch: Batch) -> Any:
        if self._metadata is None or self._metadata[0] is not batch:
            self._metadata = (batch, self._build(batch))
        return self._metadata[1]

    def _build(self, batch: Batch) -> Any:
        from vllm.v1.attention.backend import CommonAttentionMetadata

        longest = max(batch.lengths)
        common = CommonAttentionMetadata(
            query_start_loc=batch.starts,
            query_start_loc_cpu=batch.starts,
            seq_lens=batch.seq_lens,
            num_reqs=len(batch.lengths),
            num_actual_tokens=sum(batch.lengths),
            max_query_len=longest,
            max_seq_len=longest,
            block_table_tensor=batch.block_table,
            slot_mapping=batch.slots,
            causal=True,
            positions=batch.positions,
        )
        return self._builder.build(0, as_tiles(self._builder, common) if self._tiled else common)


def reference_attention(lengths: Sequence[int], q: Tensor, k: Tensor, v: Tensor, head_dim: int, scale: float) -> Tensor:
    """Causal grouped-query attention in ordinary torch, one sequence at a time, in the tensors' own dtype."""
    rows = zip(*(t.split(list(lengths)) for t in (q, k, v)), strict=True)
    return torch.cat([_one_sequence(query, key, value, head_dim, scale) for query, key, value in rows])


def _one_sequence(q: Tensor, k: Tensor, v: Tensor, head_dim: int, scale: float) -> Tensor:
    query, key, value = (t.reshape(t.shape[0], -1, head_dim).transpose(0, 1) for t in (q, k, v))
    group = query.shape[0] // key.shape[0]
    key, value = key.repeat_interleave(group, 0), value.repeat_interleave(group, 0)
    scores = query @ key.transpose(-1, -2) * scale
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    weights = scores.masked_fill(later, float("-inf")).softmax(-1)
    return (weights @ value).transpose(0, 1).reshape(q.shape)
