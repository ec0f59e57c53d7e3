"""MiniMax-M2: uniform, experts under block_sparse_moe."""

from __future__ import annotations

from bitgate.tools.slice.family import Family
from bitgate.tools.slice.keys import PerLayer
from bitgate.tools.slice.kinds import uniform

FAMILY = Family(
    names=("minimax_m2",),
    kinds=uniform("full_attention", "moe"),
    keys=(PerLayer("attn_type_list"),),
    mtp_keys=("num_mtp_modules",),
)
