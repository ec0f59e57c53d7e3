"""Queries in fixed tiles: what `batch_invariant` does to attention on the CPU engine.

The engine's attention cuts its work by the load of the whole batch, and the length of the key tiles of its online
softmax by the number of queries that it takes at once (csrc/cpu/cpu_attn_impl.hpp, calcu_tile_size_with_constant_q).
A query's tile edges then depend on its company, its chunk and its phase. A request that asks for no more queries than
fit the kernel's registers always gets the longest key tile, from the first key on, as a decode step does. So every
request is planned as requests of that many queries, which read the same cache: one plan, the same kernel, fixed tiles.

Only torch and numpy are needed here; the engine where it is installed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

QUERY_HEADS = {"amx": 32, "amx_fp8": 32, "vec16": 16, "vec": 8}
"""Query heads that the kernel of an instruction set takes at once (MaxQHeadNumPerIteration)."""


@dataclass(frozen=True)
class QueryTiles:
    """Tiles in the order of the queries: where each starts, how far its keys reach, whose it is."""

    starts: Tensor
    seq_lens: Tensor
    owners: Tensor


def tile_queries(isa: str, heads: int, kv_heads: int) -> int:
    """Queries of a tile that fit one iteration of the kernel, whether it takes the heads of a group together or not.

    A power of two, so that a tile never crosses the 32 keys to which the kernel aligns a window. An instruction set
    that is not in the table gets single queries, which fit any kernel.
    """
    fitting = QUERY_HEADS.get(isa, 1) // max(1, heads // kv_heads)
    return 1 << max(0, fitting.bit_length() - 1)


def query_tiles(starts: Tensor, seq_lens: Tensor, queries: int, edges: Iterable[int] = (0,)) -> QueryTiles:
    """Requests as tiles of at most `queries` queries, cut at the positions p with (p - edge) % queries == 0.

    starts [R+1] and seq_lens [R] are int32 as the engine has them: request r asks for the last starts[r+1] - starts[r]
    of its seq_lens[r] positions. With a sliding window the first key read hangs on a tile's first query: cut at the
    window's own edge, all queries of a tile share it whatever chunk they come in.
    """
    # In numpy: the cut is made once a forward and is no operator of the model, so nothing that watches those sees it.
    begins, lengths = starts.numpy().astype(np.int64), seq_lens.numpy().astype(np.int64)
    owner = np.repeat(np.arange(len(lengths)), np.diff(begins))
    position = (lengths - begins[1:])[owner] + begins[0] + np.arange(len(owner))
    first = np.diff(owner, prepend=-1) != 0
    for edge in edges:
        first |= (position - edge) % queries == 0
    begin = np.flatnonzero(first)
    last = np.append(begin[1:], len(owner)) - 1
    bounds = np.append(begin, len(owner)) + begins[0]
    ends = position[last] + 1
    return QueryTiles(
        torch.from_numpy(bounds.astype(np.int32)),
        torch.from_numpy(ends.astype(np.int32)),
        torch.from_numpy(owner[begin]),
    )


def as_tiles(builder: Any, metadata: Any) -> Any:
    """What the CPU engine's metadata builder is to plan, with its requests as tiles.

    `metadata` is vLLM's CommonAttentionMetadata. Attention that is not causal, which no decoder has, stays as it is.
    """
    causal = metadata.causal is True and not (builder.is_cross_attention or builder.is_encoder_only_attention)
    if not causal or metadata.max_query_len <= 1 or metadata.num_reqs == 0:
        return metadata
    count = metadata.num_reqs
    starts = metadata.query_start_loc[: count + 1]
    queries = tile_queries(builder.isa, builder.num_heads, builder.num_kv_heads)
    tiles = query_tiles(starts, metadata.seq_lens[:count], queries, _edges(builder))
    planned = copy.copy(metadata)
    planned.num_reqs = len(tiles.owners)
    planned.query_start_loc, planned.seq_lens = tiles.starts, tiles.seq_lens
    planned.block_table_tensor = torch.from_numpy(metadata.block_table_tensor.numpy()[tiles.owners.numpy()])
    return planned


def tile_attention() -> None:
    """Make the CPU engine's attention plan its requests in tiles. May be called any number of times."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadataBuilder

    if attention_in_tiles(CPUAttentionMetadataBuilder):
        return
    native = CPUAttentionMetadataBuilder.build

    def build(self: Any, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
        return native(self, common_prefix_len, as_tiles(self, common_attn_metadata), fast_build)

    build.__dict__["query_tiles"] = True
    CPUAttentionMetadataBuilder.build = build


def attention_in_tiles(builder: Any) -> bool:
    """Whether this metadata builder of vLLM plans in tiles."""
    return bool(getattr(builder.build, "query_tiles", False))


def _edges(builder: Any) -> list[int]:
    """The last key of every window in the builder's group; a layer without a window takes any edge."""
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention import Attention

    layers = get_layers_from_vllm_config(builder.vllm_config, Attention, builder.layer_names)
    windows = {getattr(layer.impl, "sliding_window", -1) for layer in layers.values()}
    return sorted({window - 1 for window in windows if window is not None and window > 0}) or [0]
