"""Which operators two sides dispatch to different kernels, as each engine describes what it really runs."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import JsonValue

from bitgate.store.records import Reason, SideRecord
from bitgate.tools.engines.worker.kernels.identity import Kernels
from bitgate.tools.engines.worker.kernels.identity import different_kernels as differing
from bitgate.tools.reasons import reason

KERNELS = "kernels"


def different_kernels(a: SideRecord, b: SideRecord) -> dict[str, JsonValue]:
    """Operator -> what each side runs for it, where that differs; operators that only one side names are left out.

    Empty when a side's engine does not describe its kernels (transformers), which says nothing about them.
    """
    found = differing(_kernels(a), _kernels(b))
    return {operator: {a.name: [*left], b.name: [*right]} for operator, (left, right) in found.items()}


def said_of_equal(different: Mapping[str, JsonValue]) -> str:
    """For the summary of a comparison that passed although the sides dispatch differently; else empty."""
    if not different:
        return ""
    names = ", ".join(different)
    return (
        f" The sides dispatch {names} to other kernels (kernels_that_differ), so other batches may differ; "
        "give both sides the same options."
    )


def kernel_reasons(different: Mapping[str, JsonValue]) -> tuple[Reason, ...]:
    """For a comparison that failed: the operators to look at first. Different kernels alone fail nothing."""
    if not different:
        return ()
    return (reason("dispatch_differs", f"the two sides run other kernels for {', '.join(different)}"),)


def _kernels(side: SideRecord) -> Kernels:
    """Only what reads as names: a user's own module may describe anything under this key."""
    found = side.stable.get(KERNELS)
    named = found.items() if isinstance(found, dict) else ()
    return {name: [str(kernel) for kernel in kernels] for name, kernels in named if isinstance(kernels, list)}
