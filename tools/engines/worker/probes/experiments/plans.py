"""vLLM's CPU attention under another plan, on both sides: which property of the plan depends on the row's company?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...tiles_attention import query_tiles, tile_queries
from ..program import Op, Program
from ..rows import differing, rows_of, same_bits
from .case import Case, Report

PLAN = "_C.get_scheduler_metadata.default"
ATTEND = "_C.cpu_attention_with_kv_cache.default"
# Positions of their arguments (vllm/_custom_ops.py, cpu_attn_get_scheduler_metadata and cpu_attention_with_kv_cache).
REQUESTS, HEADS, KV_HEADS, PLAN_LENGTHS, PLAN_STARTS, CAUSAL, PLAN_WINDOW, ISA, SPLIT = 0, 1, 2, 4, 6, 7, 8, 9, 10
STARTS, LENGTHS, WINDOW, TABLE = 4, 5, 9, 10


def plan_toggled(case: Case, report: Report) -> str | None:
    """The property of the plan without which the two are equal, if it is one of those that are known."""
    programs = case.a, case.b
    if any(_is_split(program) for program in programs) and _equal_under(
        unsplit, "attention planned without splitting the keys, on both sides", case, report
    ):
        return "attention splits the keys by the load (VLLM_CPU_ATTN_SPLIT_KV=0 makes it equal)"
    if _equal_under(in_tiles, "attention planned in fixed tiles of queries, on both sides", case, report):
        return (
            "the edges of attention's key tiles hang on how many queries the batch has it take at once "
            "(batch_invariant fixes them)"
        )
    return None


def _is_split(program: Program) -> bool:
    return any(op.args[SPLIT] for op in program.ops if op.name == PLAN)


def _equal_under(change: Callable[[Program], Program | None], said: str, case: Case, report: Report) -> bool:
    results = []
    for program, rows in ((case.a, case.shared.a), (case.b, case.shared.b)):
        changed = change(program)
        result = None if changed is None else rows_of(changed.result(), len(program.rows))
        if result is None:
            return False
        results.append(result[rows])
    equal = same_bits(*results)
    left, before = int(differing(*results).sum()), int(differing(*case.outputs()).sum())
    report.tried(said, "equal" if equal else f"{left} rows still differ, of {before} before")
    return equal


def unsplit(program: Program) -> Program | None:
    """The same region, its attention planned without splitting the keys."""
    return replace(program, ops=[_whole(op) if op.name == PLAN else op for op in program.ops])


def _whole(op: Op) -> Op:
    return replace(op, args=_with(op.args, {SPLIT: False}))


def in_tiles(program: Program) -> Program | None:
    """The same region, its attention planned in tiles of queries without a split; None where there is no such plan."""
    plans = [op for op in program.ops if op.name == PLAN]
    if len(plans) != 1 or plans[0].args[CAUSAL] is not True:
        return None
    queries = tile_queries(plans[0].args[ISA], plans[0].args[HEADS], plans[0].args[KV_HEADS])
    values, ops = dict(program.values), []
    for op in program.ops:
        if op.name == PLAN:
            cut = _cut(values, op.args[PLAN_STARTS], op.args[PLAN_LENGTHS], op.args[PLAN_WINDOW], queries)
            if cut is None:
                return None
            at = {REQUESTS: len(cut.owners), SPLIT: False}
            ops.append(_given(op, values, at, {PLAN_STARTS: cut.starts, PLAN_LENGTHS: cut.seq_lens}))
        elif op.name == ATTEND:
            cut = _cut(values, op.args[STARTS], op.args[LENGTHS], op.args[WINDOW], queries)
            table = values.get(op.args[TABLE]["t"])
            if cut is None or table is None:
                return None
            tensors = {STARTS: cut.starts, LENGTHS: cut.seq_lens, TABLE: table[cut.owners]}
            ops.append(_given(op, values, {}, tensors))
        else:
            ops.append(op)
    return replace(program, ops=ops, values=values)


def _cut(values: dict[str, Any], starts: Any, lengths: Any, window: int, queries: int) -> Any:
    given = values.get(starts["t"]), values.get(lengths["t"])
    if given[0] is None or given[1] is None:
        return None
    return query_tiles(given[0], given[1], queries, [window - 1] if window > 0 else [0])


def _given(op: Op, values: dict[str, Any], plain: dict[int, Any], tensors: dict[int, Any]) -> Op:
    """The operator with these arguments; tensors are put beside the program's values under names of their own."""
    names = {}
    for at, tensor in tensors.items():
        name = f"{op.args[at]['t']}.tiles{len(values)}"
        values[name] = tensor
        names[at] = {"t": name}
    return replace(op, args=_with(op.args, plain | names))


def _with(args: list[Any], changed: dict[int, Any]) -> list[Any]:
    return [changed.get(n, value) for n, value in enumerate(args)]
