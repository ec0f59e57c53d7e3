"""The pictures of a run: pairs over time, and the ratio with its interval."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from bitgate.tools.ab.analysis import Outcome
from bitgate.tools.ab.samples import Turn

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK: Final = "#1f2933"
QUIET: Final = "#7b8794"
GRID: Final = "#e4e7eb"
SIDE_A: Final = "#c2410c"
SIDE_B: Final = "#1d4ed8"


def draw(turns: list[Turn], result: Outcome, names: tuple[str, str], floor: float | None, path: Path) -> None:
    """Two panels: tokens a second of every turn in its order, and log-ratios of pairs and blocks with the interval."""
    # matplotlib takes most of a second to import, and only a run that measured something needs it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.2), dpi=130, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    over_time, ratio = figure.subplots(1, 2, width_ratios=(3, 2))
    _turns(over_time, [turn for turn in turns if turn.phase in ("null", "measured")], names)
    _ratio(ratio, result, names, floor)
    figure.savefig(path)


def _turns(axes: Axes, turns: list[Turn], names: tuple[str, str]) -> None:
    null = sum(turn.phase == "null" for turn in turns)
    for arm, name, colour in (("a", names[0], SIDE_A), ("b", names[1], SIDE_B)):
        places = [i for i, turn in enumerate(turns) if turn.record.arm == arm]
        axes.plot(places, [turns[i].rate for i in places], "o", color=colour, markersize=5, label=name, alpha=0.9)
    for start in range(null, len(turns) - 1, 2):
        axes.plot([start, start + 1], [t.rate for t in turns[start : start + 2]], color=QUIET, linewidth=0.8, zorder=0)
    if null:
        axes.axvspan(-0.5, null - 0.5, color=GRID, alpha=0.5, zorder=0, linewidth=0)
        axes.text(0, 1.01, "A/A", transform=axes.get_xaxis_transform(), color=QUIET, fontsize=9)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    axes.set_title("Every turn, in the order they ran", loc="left", fontsize=11, color=INK)
    _dress(axes, "turn; a line joins the two of a pair", "output tokens a second")


def _ratio(axes: Axes, result: Outcome, names: tuple[str, str], floor: float | None) -> None:
    lines = [(label, item) for label, item in (("A/A", result.null), ("A/B", result.main)) if item is not None]
    for place, (_, item) in enumerate(lines):
        found = item.interval
        axes.plot(np.exp(item.pairs), np.full(len(item.pairs), place + 0.16), "|", color=QUIET, markersize=9)
        axes.plot(np.exp(item.blocks), np.full(len(item.blocks), place + 0.08), "o", color=QUIET, markersize=3.5)
        ends = np.clip([found.ratio_low, found.ratio_high], 1e-3, 1e3)
        axes.plot(ends, [place, place], color=SIDE_A, linewidth=4, solid_capstyle="butt")
        axes.plot([found.ratio], [place], "D", color=INK, markersize=6)
        axes.annotate(f"{found.ratio:.3f}", (found.ratio, place), (0, -16), textcoords="offset points", ha="center")
    axes.axvline(1.0, color=QUIET, linewidth=1)
    if floor is not None:
        axes.axvline(floor, color=SIDE_B, linewidth=1, linestyle="--")
        axes.text(floor, 1.01, f"floor {floor:g}", transform=axes.get_xaxis_transform(), color=SIDE_B, fontsize=9)
    axes.set_yticks(range(len(lines)), [label for label, _ in lines])
    axes.set_ylim(len(lines) - 0.4, -0.5)
    axes.set_title("Ratio with its interval; ticks are pairs, dots blocks", loc="left", fontsize=11, color=INK)
    _dress(axes, f"{names[0]} / {names[1]}, tokens a second", "")


def _dress(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, color=INK, fontsize=10)
    axes.set_ylabel(y, color=INK, fontsize=10)
    axes.tick_params(colors=QUIET, labelsize=9, length=0)
    axes.grid(axis="x" if not y else "y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(GRID)
