"""The picture of a localisation: share of rows that differ, points down, layers across."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bitgate.tools.bisect.cause import Localised
from bitgate.tools.bisect.graph import AFTER, BEFORE

TINT_FROM = 0.0
LAYERS_LABELLED = 40


def draw(found: Localised, title: str, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    layers = sorted({point[0] for point in found.compared})
    names = list(dict.fromkeys(node.point[1] for node in found.nodes))
    grid = np.full((len(names), len(layers)), np.nan)
    for (layer, name), seen in found.compared.items():
        grid[names.index(name), layers.index(layer)] = seen.different / max(len(seen.keys), 1)
    figure = Figure(
        figsize=(max(4.0, 1.8 + 0.45 * len(layers)), max(3.0, 1.2 + 0.26 * len(names))), layout="constrained"
    )
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    shown = axes.imshow(grid, aspect="auto", cmap="magma_r", vmin=0.0, vmax=1.0, interpolation="nearest")
    axes.set_yticks(range(len(names)), names, fontsize=7)
    if len(layers) <= LAYERS_LABELLED:
        axes.set_xticks(range(len(layers)), [_column(layer) for layer in layers], fontsize=7)
    if found.cause is not None:
        layer, name = found.cause.node.point
        axes.plot(layers.index(layer), names.index(name), marker="s", markersize=11, fillstyle="none", color="tab:cyan")
    axes.set_title(title, fontsize=9)
    figure.colorbar(shown, ax=axes, label="share of rows with other bits")
    figure.savefig(path, dpi=130)


def _column(layer: int) -> str:
    return {BEFORE: "in", AFTER: "out"}.get(layer, str(layer))
