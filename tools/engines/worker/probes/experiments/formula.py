"""Is it one function at all: in float64, against the declared formula, through a transform of equal logits?"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .. import oracle
from ..heads import explained_logprobs
from ..wide import SAME, apart, computed_in, reads_bits
from .case import Case, Report

FAR = 16.0
"""Times the rounding bound: a result further than this from the formula was not made by it."""


def post_processing(case: Case, report: Report) -> bool:
    if case.kind != "logprob":
        return False
    logits = next((t for n, t in case.inputs(0).items() if n.endswith("logits")), None)
    if logits is None:
        return False
    said = explained_logprobs(logits, *case.outputs())
    report.tried("temperature, padded lanes and other transforms of the same logits", said or "none explains it")
    return report.is_("post_processing", said) if said else report.excludes("post_processing")


def function_apart(case: Case, report: Report) -> bool:
    """In float64 without casts: other values there mean another function, which rounding cannot explain."""
    wide = [computed_in(program, torch.float64) for program in (case.a, case.b)]
    if wide[0] is None or wide[1] is None:
        report.tried("both in float64 without casts", "not possible: a kernel that is not torch's own")
        return False
    far = apart(wide[0][case.shared.a], wide[1][case.shared.b])
    report.tried(
        "both in float64 without casts", f"{'the same function' if far < SAME else 'other functions'} ({far:.2g})"
    )
    if SAME <= far < case.function_limit():
        report.tried("both in float64 without casts", "the inputs differ, and may be rounded: nothing follows")
        return False
    report.rounding = far < SAME
    if report.rounding:
        return False
    # Stays only if nothing below finds the reason.
    report.mechanism = "even in float64 the two compute other functions; which of them is right is not known"
    return _transposed(case, report, wide[1][case.shared.b])


def _transposed(case: Case, report: Report, wanted: Tensor) -> bool:
    """A square table used the other way round explains it, if turning it makes them one function in float64."""
    given = set(case.a.inputs.values())
    for table, value in case.a.values.items():
        if table in given or value.ndim != 2 or value.shape[0] != value.shape[1] or not value.is_floating_point():
            continue
        turned = replace(case.a, values={**case.a.values, table: value.t().contiguous()})
        result = computed_in(turned, torch.float64)
        if result is not None and apart(result[case.shared.a], wanted) < SAME:
            report.tried(f"a table of shape {list(value.shape)} turned, in float64", "the same function")
            return report.is_("semantic", f"a table of shape {list(value.shape)} is transposed on one side")
    return False


def semantic(case: Case, report: Report) -> bool:
    if report.rounding:
        # One function, shown in float64: no formula need be declared, and none can be missed.
        return report.excludes("semantic")
    if reads_bits(case.a) or reads_bits(case.b):
        report.tried("against the formula", "not done: a side rounds by hand, in the bits of its numbers")
        return False
    truths: dict[str, oracle.Truth] = {}
    far: dict[str, float] = {}
    for side, (name, program) in enumerate(zip(case.names, (case.a, case.b), strict=True)):
        output = case.outputs()[side]
        found = oracle.truth(case.kind, program, case.inputs(side), output)
        if found is None or not output.is_floating_point():
            report.tried(f"{name}: against its formula in float64", "no formula is declared for this operator")
            return False
        truths[name] = found
        far[name] = float(oracle.errors(output, found).max())
        report.tried(f"{name}: {found.formula} in float64", f"largest error {far[name]:.3g} times the rounding bound")
    if report.rounding is False and _other_formula(case, report, truths):
        return True
    wrong = [name for name, error in far.items() if error > FAR]
    if len(wrong) == 1:
        said = f"{wrong[0]} is {far[wrong[0]]:.3g} times the rounding bound from {truths[wrong[0]].formula}"
        return report.is_("semantic", f"{said}, the other side is within it")
    return report.excludes("semantic") if not wrong and report.rounding is not False else False


def _other_formula(case: Case, report: Report, truths: dict[str, oracle.Truth]) -> bool:
    """In float64 a side is its formula to the last few bits, or it is another one."""
    apart_: dict[str, float] = {}
    values: dict[str, Tensor] = {}
    for name, program, rows in ((case.names[0], case.a, case.shared.a), (case.names[1], case.b, case.shared.b)):
        wide = computed_in(program, torch.float64)
        if wide is None:
            return False
        values[name] = wide[rows]
        apart_[name] = apart(values[name], truths[name].value)
        report.tried(f"{name}: computed in float64, against {truths[name].formula}", f"{apart_[name]:.2g} apart")
    other = [name for name, distance in apart_.items() if distance > case.function_limit()]
    if len(other) != 1:
        return False
    # A model may want more than the plain formula (a bias, a cap, a gate): which side is wrong is not said.
    plain = truths[next(name for name in case.names if name != other[0])]
    far = apart(values[other[0]], plain.value)
    return report.is_("semantic", f"even in float64 {other[0]} is {far:.2g} from {plain.formula}, the other side is it")
