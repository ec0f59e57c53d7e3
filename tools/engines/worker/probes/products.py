"""Matrix products inside a program, as functions of other factors: for fingerprints and for shrinking."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .fingerprint import Product, input_order, product_order, sum_order
from .gpu import home
from .program import Program, alone, decoded
from .reductions import inner_orders
from .rows import rows_of

PRODUCTS = ("aten.mm.default", "aten.addmm.default", "aten.linear.default", "aten.bmm.default", "_C.onednn_mm.default")
SUMS = ("aten.mean.dim", "aten.sum.dim_IntList")


@dataclass(frozen=True)
class Found:
    """A product of the program: x [M, K] and W [N, K] as they were, and how to run it on others."""

    op: str
    x: Tensor
    weight: Tensor
    run: Product


def product_of(program: Program) -> Found | None:
    """The program's only kind of product, at its first use; None when there is none, or several kinds."""
    names = {op.name for op in program.ops if op.name in PRODUCTS}
    if len(names) != 1:
        return None
    seen: list[Found] = []

    def hook(number: int, op: Any, env: dict[str, Any]) -> None:
        if op.name in names and not seen:
            seen.append(_found(op, env, program))

    program.run(hook=hook)
    return seen[0] if seen else None


def _found(op: Any, env: dict[str, Any], program: Program) -> Found:
    args = [home(argument) for argument in decoded(op.args, env)]
    if op.name == "_C.onednn_mm.default":
        return Found(op.name, args[1].clone(), program.values[op.args[3]["t"]], _onednn)
    if op.name == "aten.bmm.default":
        bmm = alone(op.name, [], {}, program.notes)
        return Found(op.name, args[0][0].clone(), args[1][0].t(), lambda x, w: bmm(x[None], w.t()[None])[0])
    at = 1 if op.name == "aten.addmm.default" else 0
    x, weight = args[at], args[at + 1]
    if op.name == "aten.linear.default":
        return Found(op.name, x.reshape(-1, x.shape[-1]).clone(), weight, alone(op.name, [], {}, program.notes))
    transposed = weight.stride(0) == 1 and weight.shape[0] > 1
    product = alone("aten.mm.default", [], {}, program.notes)

    def run(x: Tensor, other: Tensor) -> Tensor:
        factor = other.t() if transposed else other.t().contiguous()
        return product(x, factor)

    return Found(op.name, x.clone(), weight.t(), run)


def _onednn(x: Tensor, weight: Tensor) -> Tensor:
    from vllm import _custom_ops as ops

    handler = ops.create_onednn_mm(weight.contiguous().t(), 32)
    made: Tensor = ops.onednn_mm(handler, x, None)
    return made


def order_of(program: Program, row: int) -> dict[str, Any] | None:
    """The accumulation-order fingerprint at `row`: of the whole region if its one table is a product's weight or if
    it is a sum over rows, squares or exponentials, or else of its product, or else of its sum.

    `whole`: it is of the region, not of one operator in it, whose place in another program is not known.
    """
    whole = _through_input(program, row) or _whole(program, row)
    if whole is not None:
        return whole
    inner = inner_orders(program, row)
    if inner is not None:
        return inner
    found = product_of(program)
    if found is not None and found.weight.ndim == 2:
        rows, size = int(found.x.shape[0]), int(found.x.shape[1])
        made = product_order(found.run, rows, row % rows, size, int(found.weight.shape[0]), found.x.dtype)
        return {"operator": found.op, "rows": rows, "probed": "the product", **made}
    return _sum_of(program, row)


def _whole(program: Program, row: int) -> dict[str, Any] | None:
    """The region as a function of its input and its one weight: permuted or split sums inside it show too."""
    if len(program.inputs) != 1:
        return None
    name = next(iter(program.inputs.values()))
    x = program.values[name]
    tables = [(n, v) for n, v in program.values.items() if n != name and v.ndim == 2 and v.is_floating_point()]
    output = program.expected.reshape(program.expected.shape[0], -1)
    if len(tables) != 1 or not x.is_floating_point() or x.shape[-1] not in tables[0][1].shape:
        return None
    table, weight = tables[0]
    size, columns = int(x.shape[-1]), int(output.shape[1])

    def run(ones: Tensor, weights: Tensor) -> Tensor:
        turned = weights if along else weights.t()
        made = copied_like(turned, weight)
        result: Tensor = program.result({name: torch.ones_like(x), table: made}).reshape(output.shape[0], -1)
        return result

    for along in (True, False):
        if (size, columns) != (int(weight.shape[1 if along else 0]), int(weight.shape[0 if along else 1])):
            continue
        probe = torch.zeros(columns, size, dtype=weight.dtype)
        probe[0, :] = 1
        seen = run(x, probe)[row]
        if float(seen[0]) == size and not bool(seen[1:].any()):
            made = product_order(run, 1, row, size, columns, x.dtype)
            names = [op.name for op in program.ops if op.name in PRODUCTS]
            return {
                "operator": names[0] if names else "the region",
                "rows": len(program.rows),
                "probed": "the weight",
                "whole": True,
                **made,
            }
    return None


def _through_input(program: Program, row: int) -> dict[str, Any] | None:
    """The region as a sum over its one input, every table of it filled with ones: shares of K, whatever their number.

    Only where each value of the input then counts exactly once in every column.
    """
    if len(program.inputs) != 1:
        return None
    name = next(iter(program.inputs.values()))
    x = program.values[name]
    ones = {
        n: torch.ones_like(v)
        for n, v in program.values.items()
        if n != name and v.ndim == 2 and v.is_floating_point() and v.shape[0] != x.shape[0]
    }
    if not ones or not x.is_floating_point() or rows_of(x, len(program.rows)) is None:
        return None
    size = int(x.shape[-1])

    def run(given: Tensor) -> Tensor:
        whole = torch.zeros_like(x)
        rows_of(whole, len(program.rows))[row] = given  # type: ignore[index]
        result = rows_of(program.result({**ones, name: whole}), len(program.rows))
        return torch.zeros(1) if result is None else result[row]

    if not _counts_once(run, size, x.dtype):
        return None
    order = input_order(run, size, x.dtype)
    names = [op.name for op in program.ops if op.name in PRODUCTS]
    return {
        "operator": names[0] if names else "the region",
        "rows": len(program.rows),
        "probed": "the input",
        "whole": True,
        **order,
    }


def _counts_once(run: Callable[[Tensor], Tensor], size: int, dtype: torch.dtype) -> bool:
    places = torch.linspace(0, size - 1, 16).to(torch.int64).unique().tolist()
    for place in places:
        unit = torch.zeros(size, dtype=dtype)
        unit[place] = 1
        if not bool((run(unit) == 1).all()):
            return False
    some = torch.zeros(size, dtype=dtype)
    some[places] = 1
    return bool((run(some) == len(places)).all())


def copied_like(value: Tensor, like: Tensor) -> Tensor:
    """The values in the memory layout of `like`: kernels choose by it."""
    made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
    return made.copy_(value)


def _sum_of(program: Program, row: int) -> dict[str, Any] | None:
    made: list[dict[str, Any]] = []

    def hook(number: int, op: Any, env: dict[str, Any]) -> None:
        if op.name not in SUMS or made:
            return
        x = home(decoded(op.args[0], env))
        # A sum over rows, or a count of integers, is none over the last dimension.
        if not x.is_floating_point() or not x.ndim or env[op.outs[0]].numel() * x.shape[-1] != x.numel():
            return
        flat = x.reshape(-1, x.shape[-1])
        summed = alone(op.name, op.args[1:], op.kwargs, program.notes)

        def run(other: Tensor) -> Tensor:
            return summed(other.reshape(x.shape))

        at = row if row < flat.shape[0] else 0
        order = sum_order(run, tuple(flat.shape), at, x.dtype)
        made.append({"operator": op.name, "rows": int(flat.shape[0]), "probed": "the sum"} | order)

    program.run(hook=hook)
    return made[0] if made else None
