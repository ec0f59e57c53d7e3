"""Weights and tables of the two programs, by their bytes, and by putting one side's in the place of the other's."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..program import Program
from ..rows import rows_of, same_bits
from ..wide import SAME, apart, computed_in
from .case import Case, Report

Unlike = tuple[str, str]
"""Names of a table of A and of the table of B that has its shape and other bytes."""


def weights(case: Case, report: Report) -> bool:
    """Constants of the two programs: equal bytes, or equal after a split or transpose that the bytes prove.

    Other bytes alone show nothing: a kernel may keep its weight in another order. They are the cause when the one
    table in the place of the other gives the other side's output.
    """
    ours, theirs = named_tables(case.a), named_tables(case.b)
    proofs: list[str] = []
    unlike: list[Unlike] = []
    for name, tensor in ours.items():
        how = next((h for other in theirs.values() if (h := same_table(tensor, other))), None)
        if how:
            proofs.append(how)
        else:
            unlike += [(name, n) for n, other in theirs.items() if other.shape == tensor.shape]
    for pair in unlike:
        if _differ(case, report, pair):
            return True
    if proofs and not unlike:
        report.tried("bytes of the weights and tables", "; ".join(dict.fromkeys(proofs)))
        return report.excludes("weight_bytes")
    if (ours or theirs) and not unlike:
        report.tried("bytes of the weights and tables", "held in forms without a checked way over")
    return False


def _differ(case: Case, report: Report, pair: Unlike) -> bool:
    a, b = case.a.values[pair[0]], case.b.values[pair[1]]
    count = int((a.to(torch.float64) != b.to(torch.float64)).sum())
    report.tried("bytes of the weights and tables", f"{list(a.shape)}: {count} of {a.numel()} values differ")
    if not _exchanged(case, report, pair):
        return False
    for narrow in (torch.bfloat16, torch.float16):
        if any(torch.equal(x.to(narrow).to(torch.float64), y.to(torch.float64)) for x, y in ((a, b), (b, a))):
            return report.is_("precision", f"a table of shape {list(a.shape)} was rounded to {narrow} on one side")
    if a.dtype == b.dtype and a.ndim == 2 and a.shape[0] == a.shape[1] and torch.equal(a, b.t()):
        return report.is_("semantic", f"a table of shape {list(a.shape)} is transposed on one side")
    return report.is_("weight_bytes", f"{count} of {a.numel()} values of a table of shape {list(a.shape)} differ")


def _exchanged(case: Case, report: Report, pair: Unlike) -> bool:
    """B with A's table: A's bits, or, where kernels differ too, A's function in float64, which it was not before."""
    if case.a.values[pair[0]].dtype != case.b.values[pair[1]].dtype:
        report.tried("one side's table in the place of the other's", "not done: they have other dtypes")
        return False
    given = {pair[1]: case.a.values[pair[0]]}
    result = rows_of(case.b.result(given), len(case.b.rows))
    if result is not None and same_bits(result[case.shared.b], case.outputs()[0]):
        report.tried("b with the table of a", "the bits of a")
        return True
    changed = replace(case.b, values={**case.b.values, **given})
    ours, own, given_ours = (computed_in(program, torch.float64) for program in (case.a, case.b, changed))
    if ours is None or own is None or given_ours is None:
        report.tried("b with the table of a", "other bits than those of a")
        return False
    before, after = (apart(ours[case.shared.a], found[case.shared.b]) for found in (own, given_ours))
    report.tried("b with the table of a, both in float64", f"{after:.2g} apart, {before:.2g} with its own")
    return after < SAME <= before


def named_tables(program: Program) -> dict[str, Tensor]:
    given = set(program.inputs.values())
    rows = len(program.rows)
    return {
        n: v
        for n, v in program.values.items()
        if n not in given
        and v.is_floating_point()
        and v.ndim
        and v.numel() > 1
        and rows not in v.shape[:2]
        and v.ndim < 4
    }


def tables(program: Program) -> list[Tensor]:
    return list(named_tables(program).values())


def same_table(a: Tensor, b: Tensor) -> str | None:
    if a.ndim == b.ndim and a.shape == b.shape and torch.equal(a.to(torch.float64), b.to(torch.float64)):
        return f"{list(a.shape)} equal" if a.dtype == b.dtype else f"{list(a.shape)} equal, in {a.dtype} and {b.dtype}"
    if a.dtype != b.dtype or a.ndim != b.ndim:
        return None
    if a.shape == b.shape and torch.equal(a, b):
        return f"{list(a.shape)} equal"
    if a.ndim == 2 and a.shape == b.t().shape and torch.equal(a, b.t()):
        return f"{list(a.shape)} equal to the transpose"
    if a.ndim == 2 and a.shape[1:] == b.shape[1:]:
        small, large = sorted((a, b), key=len)
        for start in torch.nonzero((large == small[0]).all(dim=1)).flatten().tolist():
            if torch.equal(large[start : start + len(small)], small):
                return f"{list(small.shape)} equal to rows {start}:{start + len(small)} of {list(large.shape)}"
    return None
