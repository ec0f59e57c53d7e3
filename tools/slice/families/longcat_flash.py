"""LongCat-Flash: a layer holds two attentions and two MLPs beside its experts; hidden layers count both halves."""

from __future__ import annotations

from bitgate.tools.slice.family import Family
from bitgate.tools.slice.keys import Count
from bitgate.tools.slice.kinds import uniform

FAMILY = Family(
    names=("longcat_flash",),
    kinds=uniform("mla", "mla", "mlp", "mlp", "zero_experts", count="num_layers"),
    keys=(Count("num_hidden_layers", factor=2),),
    count=Count("num_layers"),
    mtp_keys=("num_nextn_predict_layers",),
)
