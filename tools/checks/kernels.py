"""Which operators two sides dispatch to different kernels, as each engine describes what it really runs."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import JsonValue

from bitgate.store.records import Reason, SideRecord
from bitgate.tools.reasons import reason

KERNELS = "kernels"


def different_kernels(a: SideRecord, b: SideRecord) -> dict[str, JsonValue]:
    """Operator -> what each side runs for it, where that differs; operators that only one side names are left out.

    Empty when a side's engine does not describe its kernels (transformers), which says nothing about them.
    """
    left, right = _kernels(a), _kernels(b)
    return {
        operator: {a.name: left[operator], b.name: right[operator]}
        for operator in sorted(left.keys() & right.keys())
        if left[operator] != right[operator]
    }


def kernel_reasons(different: Mapping[str, JsonValue]) -> tuple[Reason, ...]:
    """For a comparison that failed: the operators to look at first. Different kernels alone fail nothing."""
    if not different:
        return ()
    return (reason("dispatch_differs", f"the two sides run other kernels for {', '.join(different)}"),)


def _kernels(side: SideRecord) -> Mapping[str, JsonValue]:
    found = side.stable.get(KERNELS)
    return found if isinstance(found, dict) else {}
