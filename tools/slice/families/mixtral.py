"""Mixtral: every layer has experts."""

from __future__ import annotations

from bitgate.tools.slice.family import Family
from bitgate.tools.slice.kinds import uniform

FAMILY = Family(names=("mixtral",), kinds=uniform("full_attention", "moe"))
