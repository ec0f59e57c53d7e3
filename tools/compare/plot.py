"""The picture of a comparison: where rows differ, by position, by sequence, and by how many ulps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bitgate.tools.compare.result import Histogram, PairResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAIRS_SHOWN: Final = 4
INK: Final = "#1f2933"
QUIET: Final = "#7b8794"
GRID: Final = "#e4e7eb"
DIFFERENT: Final = "#c2410c"
ULPS: Final = "#1d4ed8"


def draw(pairs: Mapping[str, PairResult], path: Path) -> None:
    """Draw the pairs with the most differing rows, one line of three panels each, into a PNG."""
    # matplotlib takes most of a second to import, and a server that compares nothing needs none of it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = sorted(pairs.items(), key=lambda item: -item[1].different)[:PAIRS_SHOWN]
    figure = Figure(figsize=(14, 3.5 * len(shown) + 0.3), dpi=130, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    figure.supxlabel("Grey along zero: compared and equal. Blank: nothing compared there.", fontsize=9, color=QUIET)
    lines = figure.subfigures(len(shown), 1, squeeze=False)[:, 0]
    for line, (name, pair) in zip(lines, shown, strict=True):
        line.suptitle(_title(name, pair), x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
        axes = line.subplots(1, 3, width_ratios=(4, 4, 3), gridspec_kw={"wspace": 0.12})
        _shares(axes[0], pair.histograms["position"], "position in prompt + response")
        _shares(axes[1], pair.histograms["sequence"], "sequence")
        _ulps(axes[2], pair)
    figure.savefig(path)


def _title(name: str, pair: PairResult) -> str:
    first = pair.first
    place = f", first at sequence {first.sequence}, position {first.position}" if first else ""
    share = 100 * pair.different / pair.compared
    return f"{name}: {pair.different:,} of {pair.compared:,} rows differ ({share:.3g} %){place}"


def _shares(axes: Axes, histogram: Histogram, label: str) -> None:
    different, compared = np.array(histogram.different), np.array(histogram.compared)
    share = np.divide(100.0 * different, compared, out=np.zeros(len(different)), where=compared > 0)
    share = np.minimum(share, 100.0)
    edges = np.arange(len(share) + 1) * histogram.width
    low = int(np.flatnonzero(compared + different)[0])
    axes.stairs(share[low:], edges[low:], fill=True, color=DIFFERENT, alpha=0.85, linewidth=0)
    _mark_zero(axes, compared[low:], different[low:], edges[low:])
    axes.set_xlim(edges[low], edges[-1])
    axes.set_ylim(0, max(1e-9, share.max() * 1.12))
    binned = f" (bins of {histogram.width})" if histogram.width > 1 else ""
    _dress(axes, f"{label}{binned}", "rows that differ, %")


def _mark_zero(axes: Axes, compared: Any, different: Any, edges: Any) -> None:
    """Compared and all equal is not the same as not compared: a thin line along zero shows what was compared."""
    for low, high in _runs((compared > 0) & (different == 0)):
        axes.plot([edges[low], edges[high]], [0, 0], color=QUIET, linewidth=3, solid_capstyle="butt", clip_on=False)


def _runs(flags: Any) -> list[tuple[int, int]]:
    steps = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return [(int(low), int(high)) for low, high in zip(steps[::2], steps[1::2], strict=True)]


def _ulps(axes: Axes, pair: PairResult) -> None:
    counted = pair.statistics.ulp_histogram if pair.statistics else {}
    names = [_short(name) for name in counted]
    axes.bar(np.arange(len(names)), list(counted.values()), width=0.8, color=ULPS, alpha=0.85)
    every = max(1, -(-len(names) // 9))
    axes.set_xticks(np.arange(len(names))[::every], names[::every])
    axes.set_xlim(-1, max(len(names), 8))
    top = max(counted.values(), default=1)
    if top > 200:
        axes.set_yscale("log")
        axes.set_ylim(0.7, top * 2)
    else:
        from matplotlib.ticker import MaxNLocator

        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    _dress(axes, "distance in ulps, at most", "rows")


def _short(label: str) -> str:
    """'1048577-2097152' -> '2^21': a bucket by its upper end."""
    upper = int(label.split("-")[-1])
    return str(upper) if upper < 1024 else f"$2^{{{upper.bit_length() - 1}}}$"


def _dress(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, color=INK, fontsize=10)
    axes.set_ylabel(y, color=INK, fontsize=10)
    axes.tick_params(colors=QUIET, labelsize=9, length=0, which="both")
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(GRID)
