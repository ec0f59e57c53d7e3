"""Falcon-H1: every layer runs attention and Mamba-2 side by side; its multipliers do not depend on depth."""

from __future__ import annotations

from bitgate.tools.slice.family import Family
from bitgate.tools.slice.kinds import uniform

FAMILY = Family(names=("falcon_h1",), kinds=uniform("full_attention", "mamba2", "mlp"))
