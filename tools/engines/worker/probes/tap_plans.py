"""The CPU attention's work plan holds pointers: how it was made is remembered instead of its bytes."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor

from .fits import PLAN
from .taps import Taps

KEPT = 4
Plans = dict[int, tuple[str, list[Any], Any]]
"""Address of a plan -> the operator that made it, its arguments then, and the plan, which keeps its address."""


def plans(taps: Taps) -> Plans:
    """Remembers the newest plans from now on until the taps are removed; empty where vLLM has no such kernel."""
    from vllm import _custom_ops as ops

    made: Plans = {}
    run = getattr(ops, "cpu_attn_get_scheduler_metadata", None)
    if run is None:
        return made

    def planned(*args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(run).bind(*args, **kwargs)
        bound.apply_defaults()
        given = [v.clone() if isinstance(v, Tensor) else v for v in bound.arguments.values()]
        plan = run(*args, **kwargs)
        made[plan.data_ptr()] = (PLAN, given, plan)
        while len(made) > KEPT:
            made.pop(next(iter(made)))
        return plan

    taps.replace(ops, "cpu_attn_get_scheduler_metadata", planned)
    return made
