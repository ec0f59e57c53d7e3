"""Grouped experts in fixed tiles of tokens: the experts' part of `batch_invariant` on the CPU engine.

vLLM's grouped kernel takes another inner kernel above 16 rows an expert where the CPU has AMX. In a tile of
`TILE_ROWS` tokens no expert sees more rows than that, so a token's bits do not depend on its company.
"""

from __future__ import annotations

import torch

from .tiles import LIBRARY, TILE_ROWS


def tiled_cpu_fused_moe(
    out: torch.Tensor,
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    w13_bias: torch.Tensor | None,
    w2_bias: torch.Tensor | None,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    act: str,
    isa: str,
    skip_weighted: bool = False,
) -> None:
    """`vllm._custom_ops.cpu_fused_moe`, same arguments: x [T, H], topk_weights and topk_ids [T, k], into out [T, H]."""
    torch.ops.bitgate.tiled_cpu_fused_moe(
        out, x, w13, w2, w13_bias, w2_bias, topk_weights, topk_ids, act, isa, skip_weighted
    )


# One opaque operator: the compiled engine may not trace a loop whose length is the batch.
LIBRARY.define(
    "tiled_cpu_fused_moe(Tensor(a!) out, Tensor x, Tensor w13, Tensor w2, Tensor? w13_bias, Tensor? w2_bias, "
    "Tensor topk_weights, Tensor topk_ids, str act, str isa, bool skip_weighted) -> ()"
)


def _tiled(
    out: torch.Tensor,
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    w13_bias: torch.Tensor | None,
    w2_bias: torch.Tensor | None,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    act: str,
    isa: str,
    skip_weighted: bool,
) -> None:
    for start in range(0, x.shape[0], TILE_ROWS):
        part = slice(start, start + TILE_ROWS)
        tile, weights, ids = (_padded(tensor[part]) for tensor in (x, topk_weights, topk_ids))
        result = torch.empty_like(tile, dtype=out.dtype)
        torch.ops._C.cpu_fused_moe(result, tile, w13, w2, w13_bias, w2_bias, weights, ids, skip_weighted, act, isa)
        out[part] = result[: out[part].shape[0]]


def _padded(rows: torch.Tensor) -> torch.Tensor:
    """`rows` as they are, then zeros up to a tile; zero rows go to expert 0 with weight 0."""
    tile = rows.new_zeros(TILE_ROWS, *rows.shape[1:])
    tile[: rows.shape[0]] = rows
    return tile


def _nothing(*_: object) -> None:
    """The operator's shape rule: it only writes into `out`."""


LIBRARY.impl("tiled_cpu_fused_moe", _tiled, "CompositeExplicitAutograd")
torch.library.register_fake("bitgate::tiled_cpu_fused_moe", _nothing, lib=LIBRARY)
