"""The class of a difference, by experiments on the two programs. A label needs an experiment that shows it; what no
experiment shows is `unknown`.

Order matters: what makes a comparison meaningless (nondeterminism, garbage, other weights, other integers) comes before
what explains a difference exactly (another shape of the same kernel, one cast), and that before what bounds it (another
formula, another order).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .experiments.case import Case, Report
from .experiments.casts import precision
from .experiments.company import batch
from .experiments.constants import constants
from .experiments.exact import inputs_unlike, routing, sign_only
from .experiments.factor import factor
from .experiments.formula import function_apart, post_processing, semantic
from .experiments.indices import layout
from .experiments.leaf import leaf
from .experiments.memory import nondeterministic, uninitialised
from .experiments.omitted import omitted
from .experiments.order import order
from .experiments.reach import reach
from .experiments.replay import replays
from .experiments.settings import switched, told
from .experiments.slots import slots
from .experiments.suffix import suffix
from .experiments.tables import weights
from .experiments.terms import terms

Experiment = Callable[[Case, Report], bool]
"""True when the report has its class."""

EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    nondeterministic,
    uninitialised,
    inputs_unlike,
    sign_only,
    routing,
    weights,
    layout,
    switched,
    reach,
    batch,
    constants,
    terms,
    precision,
    post_processing,
    function_apart,
    omitted,
    semantic,
    suffix,
    factor,
    slots,
    order,
)


def classify(case: Case, before: Callable[[str, Report], None] = lambda *_: None) -> Report:
    """Replays both programs, then tries one experiment after the other until one shows the class.

    before: told the name of what comes next, and what is known until then.
    """
    report = Report()
    told(case, report)
    before("replay", report)
    if not replays(case, report):
        return report
    leaf(case, report)
    for experiment in EXPERIMENTS:
        before(experiment.__name__, report)
        if experiment(case, report):
            break
    return report
