"""Run by the engine's interpreter: the CPU engine's attention, planned as it comes and in query tiles. Usage: STAGE.

Each setting computes sequences together, alone, in chunks and query by query; printed are the rows whose bits differ
from those computed together.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
from dataclasses import dataclass
from typing import Any

sys.path.insert(0, sys.argv[1])
importlib.import_module("bitgate_worker.engines.vllm_environment").prepare_environment()

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

tiles = importlib.import_module("bitgate_worker.tiles_attention")

LENGTHS = (1237, 300, 1700, 999)
BLOCK, CHUNK, STEP = 128, 517, 241

Chunk = tuple[int, int, int]
"""Sequence, first position, end."""


@dataclass(frozen=True)
class Setting:
    heads: int
    kv_heads: int
    head_dim: int
    window: int = -1
    kv: str = "auto"


SETTINGS = {
    "grouped heads": Setting(4, 2, 64),
    "three heads a group": Setting(6, 2, 128),
    "head size of another kernel": Setting(16, 1, 80),
    "wide heads": Setting(2, 2, 256),
    "window": Setting(4, 2, 64, window=100),
    "window longer than a key tile": Setting(2, 1, 256, window=900),
    "fp8 cache": Setting(4, 2, 64, kv="fp8"),
}


class World:
    """Sequences whose keys and values are in a paged cache, as the engine has them."""

    def __init__(self, setting: Setting) -> None:
        from vllm import _custom_ops as ops
        from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

        self.ops, self.setting = ops, setting
        self.isa = _get_attn_isa(torch.bfloat16, BLOCK, setting.head_dim, setting.kv)
        blocks = [-(-n // BLOCK) for n in LENGTHS]
        dtype = torch.bfloat16 if setting.kv == "auto" else torch.uint8
        cache = torch.zeros(sum(blocks), setting.kv_heads, 2 * BLOCK, setting.head_dim, dtype=dtype)
        self.keys, self.values = cache.chunk(2, dim=2)
        self.table = torch.zeros(len(LENGTHS), max(blocks), dtype=torch.int32)
        self.queries = [_noise(n, setting.heads, setting.head_dim) for n in LENGTHS]
        for row, (length, count) in enumerate(zip(LENGTHS, blocks, strict=True)):
            first = sum(blocks[:row])
            self.table[row, :count] = torch.arange(first, first + count)
            key, value = (_noise(length, setting.kv_heads, setting.head_dim) for _ in range(2))
            slots = torch.arange(length) + first * BLOCK
            ops.cpu_attn_reshape_and_cache(
                key, value, self.keys, self.values, slots, self.isa, kv_cache_dtype=setting.kv
            )

    def attend(self, chunks: list[Chunk], queries: int | None) -> Tensor:
        """[T, H, D] of these chunks in one call; `queries` a tile, or None as the engine plans it."""
        given, s = torch.cat([self.queries[r][a:b] for r, a, b in chunks]), self.setting
        starts = torch.tensor([0, *(b - a for _, a, b in chunks)], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        lengths = torch.tensor([b for _, _, b in chunks], dtype=torch.int32)
        table = self.table[torch.tensor([r for r, _, _ in chunks])]
        if queries is not None:
            cut = tiles.query_tiles(starts, lengths, queries, [s.window - 1] if s.window > 0 else [0])
            starts, lengths, table = cut.starts, cut.seq_lens, table[cut.owners]
        plan = self.ops.cpu_attn_get_scheduler_metadata(
            num_reqs=len(lengths), num_heads=s.heads, num_kv_heads=s.kv_heads, head_dim=s.head_dim, seq_lens=lengths,
            dtype=torch.bfloat16, query_start_loc=starts, causal=True, sliding_window_size=s.window, isa=self.isa,
            enable_kv_split=False, kv_cache_dtype=s.kv,
        )  # fmt: skip
        made = torch.empty_like(given)
        self.ops.cpu_attention_with_kv_cache(
            query=given, key_cache=self.keys, value_cache=self.values, output=made, query_start_loc=starts,
            seq_lens=lengths, scale=s.head_dim**-0.5, causal=True, alibi_slopes=None, sliding_window=s.window,
            block_table=table, softcap=0, scheduler_metadata=plan, s_aux=None, kv_cache_dtype=s.kv,
        )  # fmt: skip
        return made


def _noise(*shape: int) -> Tensor:
    return torch.randn(*shape).bfloat16() * 2


def unlike(a: Tensor, b: Tensor) -> int:
    return int((a.view(torch.int16) != b.view(torch.int16)).flatten(1).any(1).sum())


def compared(setting: Setting) -> dict[str, Any]:
    world = World(setting)
    queries = tiles.tile_queries(world.isa, setting.heads, setting.kv_heads)
    return {"queries": queries, "plain": counts(world, None), "tiles": counts(world, queries)}


def counts(world: World, queries: int | None) -> dict[str, int]:
    whole = [(row, 0, length) for row, length in enumerate(LENGTHS)]
    together = world.attend(whole, queries).split(LENGTHS)
    alone = sum(unlike(world.attend([one], queries), together[one[0]]) for one in whole)
    chunks = sum(
        unlike(world.attend([(row, a, min(a + CHUNK, length))], queries), together[row][a : a + CHUNK])
        for row, _, length in whole
        for a in range(0, length, CHUNK)
    )
    steps = [(row, p, p + 1) for row, _, length in whole for p in range(7, length, STEP)]
    decode = unlike(world.attend(steps, queries), torch.cat([together[row][p : p + 1] for row, p, _ in steps]))
    return {"alone": alone, "chunks": chunks, "decode": decode}


def laws(draws: int) -> int:
    """Random batches cut one query at a time in plain Python, against the vectorised cut; how many were compared."""
    rng = random.Random(0)
    for _ in range(draws):
        queries, edges = rng.choice([1, 2, 4, 8, 16]), [rng.randrange(40) for _ in range(rng.choice([1, 1, 2]))]
        sizes = [rng.randrange(1, 60) for _ in range(rng.randrange(1, 6))]
        lengths = [size + rng.choice([0, rng.randrange(200)]) for size in sizes]
        starts = torch.tensor([0, *sizes], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        cut = tiles.query_tiles(starts, torch.tensor(lengths, dtype=torch.int32), queries, edges)
        assert (cut.starts.tolist(), cut.seq_lens.tolist(), cut.owners.tolist()) == by_hand(
            sizes, lengths, queries, edges
        )
    return draws


def by_hand(sizes: list[int], lengths: list[int], queries: int, edges: list[int]) -> tuple[list[int], ...]:
    starts, ends, owners, row = [], [], [], 0
    for owner, (size, length) in enumerate(zip(sizes, lengths, strict=True)):
        for position in range(length - size, length):
            if position == length - size or any((position - edge) % queries == 0 for edge in edges):
                starts.append(row)
                owners.append(owner)
                ends.append(position + 1)
            ends[-1] = position + 1
            row += 1
    return [*starts, row], ends, owners


def main() -> None:
    torch.manual_seed(0)
    found: dict[str, Any] = {name: compared(setting) for name, setting in SETTINGS.items()}
    sys.stdout.write(json.dumps({"settings": found, "laws": laws(300)}, allow_nan=False))


main()
