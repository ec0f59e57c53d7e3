"""Mamba-2: uniform; `num_layers` or `n_layer` stand for the count in older configurations."""

from __future__ import annotations

from bitgate.tools.slice.family import Family, Kind, layer_count
from bitgate.tools.slice.keys import Count, Json


def kinds(config: Json) -> list[Kind]:
    name = next((name for name in ("num_hidden_layers", "n_layer") if name in config), "num_hidden_layers")
    return [("mamba2",)] * layer_count(config, name)


FAMILY = Family(names=("mamba2",), kinds=kinds, keys=(Count("n_layer"), Count("num_layers")))
