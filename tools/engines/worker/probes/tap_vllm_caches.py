"""vLLM's caches cut to what a forward's requests use, blocks and slots numbered anew: what a region keeps of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Cut = Callable[[Tensor], Tensor | None]
"""What is kept in the place of a tensor; None for one that is kept as it is."""


def blocks(table: Any, runner: Any) -> Cut:
    """Of the paged cache of keys and values. `table`: the attention's metadata of the forward."""
    storages = {c.untyped_storage().data_ptr() for c in getattr(runner, "kv_caches", ()) if isinstance(c, Tensor)}
    if not storages:
        return lambda tensor: None
    size = runner.cache_config.block_size
    total = int(runner.kv_cache_config.num_blocks)
    needed = -(-int(table.seq_lens.max()) // size)
    used = torch.unique(table.block_table[:, :needed]).to(torch.int64)
    number = torch.zeros(int(used.max()) + 1, dtype=torch.int64, device=used.device)
    number[used] = torch.arange(len(used), device=used.device)

    def cut(tensor: Tensor) -> Tensor | None:
        # Backends hand their kernels the cache itself or a view of it: keys and values apart, heads before slots.
        if total in tensor.shape and tensor.untyped_storage().data_ptr() in storages:
            return tensor.index_select(list(tensor.shape).index(total), used)
        if tensor.data_ptr() == table.block_table.data_ptr() and tensor.shape == table.block_table.shape:
            kept = tensor[:, :needed].to(torch.int64)
            known = torch.isin(kept, used)
            return torch.where(known, number[kept.clamp(max=len(number) - 1)], 0).to(tensor.dtype)
        slots = table.slot_mapping
        if tensor.data_ptr() == slots.data_ptr() and tensor.dtype == slots.dtype and tensor.ndim == 1:
            valid = tensor >= 0
            block = torch.where(valid, tensor // size, used[0].to(tensor.dtype)).to(torch.int64)
            return torch.where(valid, number[block] * size + tensor % size, tensor).to(tensor.dtype)
        return None

    return cut


def states(metadata: Any, layers: Mapping[str, Any]) -> Cut:
    """Of the states of recurrent layers. `metadata`: by the layer's name; `layers`: those that have a cache."""
    slots: dict[int, Tensor] = {}
    caches: dict[int, Tensor] = {}
    for name, one in metadata.items() if isinstance(metadata, dict) else ():
        indices = getattr(one, "non_spec_state_indices_tensor", None)
        if indices is not None:
            slots[indices.data_ptr()] = indices
            used = torch.unique(indices).to(torch.int64)
            caches |= {cache.data_ptr(): used for cache in layers[name].kv_cache}

    def cut(tensor: Tensor) -> Tensor | None:
        indices, used = slots.get(tensor.data_ptr()), caches.get(tensor.data_ptr())
        if indices is not None and tensor.shape == indices.shape:
            return torch.unique(tensor, return_inverse=True)[1].to(tensor.dtype)
        return tensor.index_select(0, used) if used is not None and tensor.ndim > 2 else None

    return cut
