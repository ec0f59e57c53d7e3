"""Arguments of kernels that check no sizes: what does not fit is read or written beyond a tensor's end, which ends the
process, or worse, does not.

An experiment that gives a program another integer, or a program that was cut wrongly, is refused here before it runs.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

BLOCKS, PLACES = 0, 2
"""Dimensions of vLLM's CPU cache of keys or of values: [blocks, key heads, places in a block, head size]."""
PLAN = "_C.get_scheduler_metadata.default"


def check(name: str, args: Any) -> None:
    """Raises: RuntimeError, before a kernel is called with what does not fit."""
    if name in _CHECKS:
        _CHECKS[name](name, args)


def note(name: str, args: Any, result: Any) -> None:
    """A plan of attention is good for the queries and keys that it was made for: these stay with it."""
    if name == PLAN:
        result.planned_for = args[6].tolist(), args[4].tolist()


def _cached(name: str, args: Any) -> None:
    keys, values, key_cache, _, slots = args[:5]
    room = _room(key_cache)
    _fits(name, len(slots) >= len(keys) == len(values), f"{len(slots)} slots for {len(keys)} rows")
    _fits(name, not len(slots) or int(slots.max()) < room, f"a slot beyond the cache of {room}")


def _attended(name: str, args: Any) -> None:
    queries, key_cache, _, out, starts, lengths = args[:6]
    table, blocks, places = args[10], key_cache.shape[BLOCKS], key_cache.shape[PLACES]
    planned = getattr(args[12], "planned_for", None)
    _fits(name, planned == (starts.tolist(), lengths.tolist()), f"a plan for {planned}"[:200])
    _fits(name, queries.shape == out.shape, f"room for {list(out.shape)} of {list(queries.shape)}")
    _fits(name, int(starts[-1]) <= len(queries), f"{int(starts[-1])} queries where there are {len(queries)}")
    _fits(name, len(table) >= len(lengths), f"blocks of {len(table)} requests for {len(lengths)}")
    for row, length in zip(table, lengths.tolist(), strict=False):
        used = row[: -(-length // places)]
        _fits(name, len(used) * places >= length, f"{len(used)} blocks of {places} for {length} keys")
        inside = not len(used) or 0 <= int(used.min()) <= int(used.max()) < blocks
        _fits(name, inside, f"a block that is none of the {blocks} of the cache")


def _planned(name: str, args: Any) -> None:
    lengths, starts = args[4], args[6]
    _fits(name, args[0] == len(lengths), f"{args[0]} requests with {len(lengths)} lengths")
    _requests(name, starts, lengths)


def _requests(name: str, starts: Tensor, lengths: Tensor) -> None:
    asked = starts.diff()
    fitting = len(asked) == len(lengths) and bool(((asked >= 0) & (asked <= lengths)).all()) and int(starts[0]) >= 0
    _fits(name, fitting, f"queries from {starts.tolist()[:9]} on over {lengths.tolist()[:8]} keys")


def _room(cache: Tensor) -> int:
    return int(cache.shape[BLOCKS] * cache.shape[PLACES])


def _fits(name: str, holds: bool, otherwise: str) -> None:
    if not holds:
        raise RuntimeError(f"{name}: got {otherwise}")


_CHECKS = {
    "_C.cpu_attn_reshape_and_cache.default": _cached,
    "_C.cpu_attention_with_kv_cache.default": _attended,
    PLAN: _planned,
}
