"""Weights and tables of the two programs, by their bytes."""

from __future__ import annotations

import torch
from torch import Tensor

from ..program import Program
from .case import Case, Report


def weights(case: Case, report: Report) -> bool:
    """Constants of the two programs: equal bytes, or equal after a split or transpose that the bytes prove."""
    ours, theirs = tables(case.a), tables(case.b)
    proofs, unlike = [], []
    for tensor in ours:
        how = next((h for other in theirs if (h := same_table(tensor, other))), None)
        if how:
            proofs.append(how)
        elif any(other.shape == tensor.shape for other in theirs):
            unlike.append(tensor)
    if unlike:
        tensor = unlike[0]
        other = next(t for t in theirs if t.shape == tensor.shape)
        return _weights_differ(case, report, tensor, other)
    if proofs:
        report.tried("bytes of the weights and tables", "; ".join(dict.fromkeys(proofs)))
        return report.excludes("weight_bytes")
    if ours or theirs:
        report.tried("bytes of the weights and tables", "held in forms without a checked way over")
    return False


def _weights_differ(case: Case, report: Report, a: Tensor, b: Tensor) -> bool:
    count = int((a != b).sum()) if a.dtype == b.dtype else a.numel()
    report.tried("bytes of the weights and tables", f"{list(a.shape)}: {count} of {a.numel()} values differ")
    for narrow in (torch.bfloat16, torch.float16):
        if a.dtype == b.dtype == torch.float32 and (
            torch.equal(a.to(narrow).float(), b) or torch.equal(b.to(narrow).float(), a)
        ):
            return report.is_("precision", f"a table of shape {list(a.shape)} was rounded to {narrow} on one side")
    if a.dtype == b.dtype and a.ndim == 2 and a.shape[0] == a.shape[1] and torch.equal(a, b.t()):
        return report.is_("semantic", f"a table of shape {list(a.shape)} is transposed on one side")
    return report.is_("weight_bytes", f"{count} of {a.numel()} values of a table of shape {list(a.shape)} differ")


def tables(program: Program) -> list[Tensor]:
    given = set(program.inputs.values())
    rows = len(program.rows)
    return [
        v
        for n, v in program.values.items()
        if n not in given
        and v.is_floating_point()
        and v.ndim
        and v.numel() > 1
        and rows not in v.shape[:2]
        and v.ndim < 4
    ]


def same_table(a: Tensor, b: Tensor) -> str | None:
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
