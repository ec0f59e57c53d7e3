"""What is put in: every class of difference as a way to replace one operator, written for no engine in particular.

A maker takes a site (sites.py) and the point it is meant for, and gives what to run in its place. Where two engines
must both be changed for one difference to show alone (a split of the same sums, zeros of either sign), the fault has
a partner for the other side.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from injector.sites import Run, Site
from torch import Tensor
from torch.nn import functional as F

Make = Callable[[Site, str], Run]
CROWD = 40
"""Rows from which a kernel that looks at its company takes another way: two sequences of 23, and not one."""


@dataclass(frozen=True)
class Fault:
    """`label`: the class it is; `name`: which fault of that class. `dtype`: of the engine it can show in."""

    label: str
    name: str
    make: Make
    partner: Make | None = None
    dtype: str = "bfloat16"
    company: bool = False

    @property
    def same_side(self) -> bool:
        return self.company


# After the operator: a change of the rows it gives.


def after(change: Callable[[Tensor], Tensor]) -> Make:
    """The operator's own result at the point, changed; the other parts of a fused product stay."""

    def make(site: Site, point: str) -> Run:
        if site.kind == "attention":
            return lambda attend, output, metadata, *_: attended(attend, output, metadata, change)
        if site.kind == "rope":
            return lambda *args: turned(site.run(*args), point, change)
        if site.kind == "topk":
            return lambda logits: chosen(site.run(logits), point, change)
        if site.kind == "norm":
            return lambda x, residual=None: summed(site.run(x, residual), point, change)
        columns = site.columns.get(point, slice(0, None))
        return lambda *args: within(site.run(*args), columns, change)

    return make


def within(made: Tensor, columns: slice, change: Callable[[Tensor], Tensor]) -> Tensor:
    if columns == slice(0, None):
        return change(made)
    return torch.cat([made[..., : columns.start], change(made[..., columns]), made[..., columns.stop :]], -1)


def attended(attend: Run, output: Tensor, metadata: Any, change: Callable[[Tensor], Tensor]) -> None:
    attend(metadata, output)
    output.copy_(change(output.flatten(1)).reshape(output.shape))


def turned(made: tuple[Tensor, Tensor], point: str, change: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    q, k = made
    return (change(q), k) if point == "q" else (q, change(k))


def chosen(made: tuple[Tensor, Tensor], point: str, change: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    weights, ids = made
    return (weights, change(ids)) if point == "topk_ids" else (change(weights), ids)


def summed(made: Any, point: str, change: Callable[[Tensor], Tensor]) -> Any:
    if not isinstance(made, tuple):
        return change(made)
    out, total = made
    return (out, change(total)) if point.startswith("resid") else (change(out), total)


def noise(x: Tensor) -> Tensor:
    return x + torch.rand_like(x) * 0.05


def unwritten(x: Tensor) -> Tensor:
    """A kernel that writes all but the last lane of its output."""
    stale(x)
    made = torch.empty_like(x)
    made[..., :-1] = x[..., :-1]
    return made


def stale(x: Tensor) -> None:
    """Memory of this size with other things in it goes back to the allocator: the next to ask gets it."""
    torch.full_like(x, 3.0)


def over_padding(x: Tensor) -> Tensor:
    """A largest value taken over padding rows that nobody wrote, as a scale per tensor would be."""
    flat = x.reshape(-1, x.shape[-1])
    rows = 64 * (flat.shape[0] // 64 + 1)
    stale(flat.new_empty(rows, x.shape[-1]))
    padded = flat.new_empty(rows, x.shape[-1])
    padded[: flat.shape[0]] = flat
    return x * torch.where(padded.abs().amax() > 2.0, 1.125, 0.875).to(x.dtype)


def lane(value: float, bits: int | None = None) -> Callable[[Tensor], Tensor]:
    def change(x: Tensor) -> Tensor:
        last = torch.full((*x.shape[:-1], 1), value, dtype=x.dtype)
        if bits is not None:
            last = torch.full((*x.shape[:-1], 1), bits, dtype=torch.int16).view(torch.bfloat16)
        return torch.cat([x[..., :-1], last], -1)

    return change


def times(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x * factor


def plus(bias: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x + bias


def shifted(x: Tensor) -> Tensor:
    """Columns of the wrong head or shard."""
    return x.roll(x.shape[-1] // 2, -1)


# Weights.


def weight_bytes(site: Site, point: str) -> Run:
    assert site.weight is not None and site.other is not None
    table = site.weight.clone()
    rows = table[site.columns.get(point, slice(0, None))]
    rows.view(-1)[::7] = rows.view(-1)[::7] * 1.0625
    return site.other(table)


def older_weight(site: Site, point: str) -> Run:
    """The weight of some updates ago: every value of it a little other."""
    assert site.weight is not None and site.other is not None
    table = site.weight.clone()
    rows = table[site.columns.get(point, slice(0, None))]
    rows.mul_(1 + 0.03 * torch.sin(torch.arange(rows.numel(), dtype=torch.float32).reshape(rows.shape)).to(rows.dtype))
    return site.other(table)


_OTHER: dict[int, Tensor] = {}
"""Packed weights with other bytes, made in the pass that only hashes: no operator makes a wrong weight."""


def expert_bytes(*, placed: bool = False) -> Make:
    """One value in seven; `placed`: each expert where its neighbour belongs."""

    def make(site: Site, point: str) -> Run:
        def run(w1: Tensor, w2: Tensor, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
            at = w2.data_ptr() + placed
            if at not in _OTHER:
                table = _OTHER[at] = w2.detach().roll(1, 0) if placed else w2.detach().clone()
                if not placed:
                    table.view(-1)[::7] = table.view(-1)[::7] * 1.0625
            return site.run(w1, _OTHER[at], x, weights, ids)

        return run

    return make


def experts_from_one(site: Site, point: str) -> Run:
    """The experts' numbers counted from one inside of the kernel."""
    return lambda w1, w2, x, weights, ids: site.run(w1, w2, x, weights, (ids + 1) % w1.shape[0])


# Sums in another order, or by another kernel for some rows.


def split_sum(site: Site, point: str) -> Run:
    """Two halves of K by the engine's own kernel, added."""
    assert site.weight is not None and site.other is not None
    half = site.weight.shape[1] // 2
    left, right = site.other(site.weight[:, :half]), site.other(site.weight[:, half:])
    return lambda x: left(x[..., :half].contiguous()) + right(x[..., half:].contiguous())


def permuted_sum(site: Site, point: str) -> Run:
    assert site.weight is not None and site.other is not None
    order = torch.arange(site.weight.shape[1] - 1, -1, -1)
    turned_round = site.other(site.weight[:, order])
    return lambda x: turned_round(x[..., order].contiguous())


def ranks(order: tuple[int, ...], *, pairwise: bool = False, wide: bool = False) -> Make:
    """A row-parallel product: each rank's share of K, and the sum of the shares in the order they arrive.

    pairwise: by halves, as a tree does, and not along a ring; wide: in float32.
    """

    def make(site: Site, point: str) -> Run:
        assert site.weight is not None and site.other is not None
        size = site.weight.shape[1] // len(order)
        shares = [site.other(site.weight[:, i * size : (i + 1) * size]) for i in range(len(order))]

        def run(x: Tensor) -> Tensor:
            partial = [share(x[..., i * size : (i + 1) * size].contiguous()) for i, share in enumerate(shares)]
            partial = [part.float() for part in partial] if wide else partial
            if pairwise:
                first, second, third, fourth = (partial[number] for number in order)
                return ((first + second) + (third + fourth)).to(x.dtype)
            total = partial[order[0]]
            for number in order[1:]:
                total = total + partial[number]
            return total.to(x.dtype)

        return run

    return make


def rows_in(x: Tensor) -> int:
    """[T, …], or [sequences, T, …] of at most two sequences."""
    return x.shape[0] if x.shape[0] > 2 else x.shape[0] * x.shape[1]


def by_company(make: Make) -> Make:
    def both(site: Site, point: str) -> Run:
        other = make(site, point)
        return lambda x, *rest: other(x, *rest) if rows_in(x) > CROWD else site.run(x, *rest)

    return both


def raced(site: Site, point: str) -> Run:
    """Shares of K added as they come."""

    def run(x: Tensor) -> Tensor:
        parts = torch.stack([F.linear(x.float() * (torch.arange(x.shape[-1]) % 4 == i), table) for i in range(4)])
        first, second, third, fourth = parts[torch.randperm(4)]
        return (first + second + third + fourth).to(x.dtype)

    assert site.weight is not None
    table = site.weight.float()
    return run


# Casts.


def narrow_product(site: Site, point: str) -> Run:
    """Autocast left on: a float32 model's product in bfloat16."""
    assert site.weight is not None and site.other is not None
    narrow = site.other(site.weight.to(torch.bfloat16))
    return lambda x: narrow(x.to(torch.bfloat16)).to(x.dtype)


def norm_in(
    *, late: bool, halves: bool = False, rounded: bool = False, one: float = 0.0, larger: float = 1.0,
    outside: bool = False, centred: bool = False,
) -> Make:  # fmt: skip
    """RMSNorm in ordinary torch. late: the weight before the rounding; rounded: of the sum as it is stored.

    larger: times the epsilon; outside: of the root; centred: the mean taken off, as LayerNorm does.
    """

    def make(site: Site, point: str) -> Run:
        weight, eps = site.weight, site.eps * larger
        assert weight is not None

        def run(x: Tensor, residual: Tensor | None = None) -> Any:
            wide = x.float() if residual is None else x.float() + residual.float()
            total = wide.to(x.dtype)
            wide = total.float() if rounded else wide
            wide = wide - wide.mean(-1, keepdim=True) if centred else wide
            square = wide.pow(2)
            half = square.shape[-1] // 2
            mean = (
                (square[..., :half].sum(-1, keepdim=True) + square[..., half:].sum(-1, keepdim=True)) / (2 * half)
                if halves
                else square.mean(-1, keepdim=True)
            )
            wide = wide / (mean.sqrt() + eps) if outside else wide * torch.rsqrt(mean + eps)
            table = weight + one if one else weight
            out = (table.float() * wide).to(x.dtype) if late else table * wide.to(x.dtype)
            return out if residual is None else (out, total)

        return run

    return make


def rounded_sum(site: Site, point: str) -> Run:
    """A float32 model's residual stream rounded to bfloat16."""

    def run(x: Tensor, residual: Tensor) -> Any:
        total = (x + residual).to(torch.bfloat16).to(x.dtype)
        return site.run(total), total

    return run


def scaled_sum(factor: float) -> Make:
    return lambda site, point: lambda x, residual: site.run(x, residual * factor)


def silu(*, early: bool, approximate: bool = False, swapped: bool = False, limit: float = 0.0) -> Make:
    def make(site: Site, point: str) -> Run:
        def run(x: Tensor) -> Tensor:
            gate, up = x.chunk(2, dim=-1)[:: -1 if swapped else 1]
            if limit:
                gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            if approximate:
                return F.gelu(gate) * up
            return F.silu(gate) * up if early else (F.silu(gate.float()) * up.float()).to(x.dtype)

        return run

    return make


def rotated(
    *, wide: bool = False, pairs: bool = False, shift: int = 0, backwards: bool = False, partial: bool = False
) -> Make:
    """Rotary embedding in ordinary torch: halves or pairs turned, in float32 or in the model's dtype.

    backwards: the other way round; partial: the first half of each head alone.
    """

    def make(site: Site, point: str) -> Run:
        cache = site.weight
        assert cache is not None

        def run(positions: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
            places = positions + shift if shift else positions
            cos, sin = cache.index_select(0, places).to(q.dtype).chunk(2, dim=-1)
            parts = [part(x, cos[:, None], sin[:, None], point_ == point) for point_, x in (("q", q), ("k", k))]
            return parts[0], parts[1]

        def part(x: Tensor, cos: Tensor, sin: Tensor, own: bool) -> Tensor:
            heads = x.view(x.shape[0], -1, 2 * cos.shape[-1])
            if own and wide:
                heads, cos, sin = heads.float(), cos.float(), sin.float()
            if own and backwards:
                sin = sin.neg()
            if own and partial:
                half = cos.shape[-1] // 2
                low, high = heads[..., : 2 * half].chunk(2, dim=-1)
                cos, sin = cos[..., :half], sin[..., :half]
                made = torch.cat([low * cos - high * sin, high * cos + low * sin, heads[..., 2 * half :]], -1)
                return made.reshape(x.shape)
            if own and pairs:
                even, odd = heads[..., ::2], heads[..., 1::2]
                made = torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)
            else:
                low, high = heads.chunk(2, dim=-1)
                made = torch.cat([low * cos - high * sin, high * cos + low * sin], -1)
            return made.to(x.dtype).reshape(x.shape)

        return run

    return make


def table_of_other_base(site: Site, point: str) -> Run:
    assert site.weight is not None and site.other is not None
    return site.other(site.weight.roll(1, 1))


def other_table(change: Callable[[Tensor], Tensor]) -> Make:
    """Cosines and sines of another scaling: positions stretched, or a factor on all of them."""

    def make(site: Site, point: str) -> Run:
        assert site.weight is not None and site.other is not None
        return site.other(change(site.weight))

    return make


def stretched(table: Tensor) -> Tensor:
    return table[torch.arange(len(table)) // 2]


def rounded_table(site: Site, point: str) -> Run:
    """A float32 model's cosines and sines kept in bfloat16."""
    assert site.weight is not None and site.other is not None
    return site.other(site.weight.to(torch.bfloat16).to(site.weight.dtype))


# Attention in ordinary torch, where the kernel's inside cannot be reached.


def softmax_attention(
    *, narrow: bool = False, halves: bool = False, window: int = 0, scale: float = 1.0, ahead_by: int = 0,
    in_turn: bool = False, limit: float = 0.0, rounded: bool = False,
) -> Make:  # fmt: skip
    """ahead_by: rows that the mask lets a query see too many; in_turn: heads share keys in turn, not in groups; limit:
    of the scores, by a tanh; rounded: the scores, to bfloat16."""

    def make(site: Site, point: str) -> Run:
        def run(attend: Run, output: Tensor, metadata: Any, q: Tensor, k: Tensor, v: Tensor) -> None:
            bounds = metadata.query_start_loc.tolist()
            # A request may be planned as several tiles of queries, each of which reaches back to its beginning.
            for start, stop, length in zip(bounds, bounds[1:], metadata.seq_lens.tolist(), strict=False):
                seen = slice(stop - length, stop)
                parts = (q[start:stop], k[seen], v[seen])
                output[start:stop] = one(*(x.transpose(0, 1) for x in parts)).transpose(0, 1)

        def one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            group = q.shape[0] // k.shape[0]
            if in_turn:
                k, v = k.repeat(group, 1, 1), v.repeat(group, 1, 1)
            else:
                k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
            scores = q.float() @ k.float().transpose(-1, -2) * (scale * q.shape[-1] ** -0.5)
            scores = limit * (scores / limit).tanh() if limit else scores
            scores = scores.to(torch.bfloat16).float() if rounded else scores
            size, ahead = scores.shape[-1], scores.shape[-1] - scores.shape[-2]
            seen = torch.ones(scores.shape[-2], size, dtype=torch.bool).tril(ahead + ahead_by)
            if window:
                seen = seen.triu(ahead + 1 - window)
            weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
            weights = weights.to(torch.bfloat16).float() if narrow else weights
            half = size // 2
            wide = v.float()
            if halves:
                return (weights[..., :half] @ wide[:, :half] + weights[..., half:] @ wide[:, half:]).to(q.dtype)
            return (weights @ wide).to(q.dtype)

        return run

    return make


def other_blocks(site: Site, point: str) -> Run:
    """The block table of another request."""

    def run(attend: Run, output: Tensor, metadata: Any, *_: Any) -> None:
        attend(dataclasses.replace(metadata, block_table=metadata.block_table.flip(0).contiguous()), output)

    return run


# Routing.


def coarse(site: Site, point: str) -> Run:
    """Router logits so coarse that ties are common, on both sides."""
    return lambda x: (site.run(x) * 2).round() / 2


def wide_router(*, rounded: bool) -> Make:
    """The router in float32; rounded: what it gives, to the model's dtype, in which it is then chosen from."""

    def make(site: Site, point: str) -> Run:
        assert site.weight is not None
        table = site.weight.float()

        def run(x: Tensor) -> Tensor:
            made = F.linear(x.float(), table)
            return made.to(x.dtype).float() if rounded else made

        return run

    return make


def top(
    *, last: bool = False, narrow: bool = False, plain: bool = False, least: bool = False, sigmoid: bool = False
) -> Make:
    """softmax top-k in ordinary torch. last: of equals the last; plain: not renormalised; least: the worst experts."""

    def make(site: Site, point: str) -> Run:
        def run(logits: Tensor) -> tuple[Tensor, Tensor]:
            size = site.run(logits)[1].shape[-1]
            wide = logits if narrow else logits.float()
            scores = wide.sigmoid() if sigmoid else wide.softmax(-1)
            ranked = scores.neg() if least else scores
            if last:
                ids = ranked.shape[-1] - 1 - ranked.flip(-1).argsort(dim=-1, descending=True, stable=True)[..., :size]
            else:
                ids = ranked.argsort(dim=-1, descending=True, stable=True)[..., :size]
            weights = scores.gather(-1, ids).float()
            weights = weights if plain else weights / weights.sum(-1, keepdim=True)
            return weights.contiguous(), ids.to(torch.int32)

        return run

    return make


def other_order(site: Site, point: str) -> Run:
    def run(logits: Tensor) -> tuple[Tensor, Tensor]:
        weights, ids = site.run(logits)
        return weights.flip(-1).contiguous(), ids.flip(-1).contiguous()

    return run


def experts_summed(order: int) -> Make:
    """Each slot's expert alone, added in the slots' order or in the other."""

    def make(site: Site, point: str) -> Run:
        def run(w1: Tensor, w2: Tensor, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
            alone = [
                site.run(w1, w2, x, weights[:, n : n + 1].contiguous(), ids[:, n : n + 1].contiguous())
                for n in range(ids.shape[1])
            ][::order]
            total = alone[0]
            for part in alone[1:]:
                total = total + part
            return total

        return run

    return make


# Logprobs.


def logprobs(
    *, temperature: float = 1.0, lanes: int = 0, narrow: bool = False, halves: bool = False, limit: float = 0.0
) -> Make:
    def make(site: Site, point: str) -> Run:
        def run(logits: Tensor) -> Tensor:
            wide = logits.to(torch.bfloat16) if narrow else logits.to(torch.float32)
            wide = limit * (wide / limit).tanh() if limit else wide
            if halves:
                top = wide.amax(-1, keepdim=True)
                parts = (wide - top).exp().chunk(2, -1)
                return wide - top - (parts[0].sum(-1, keepdim=True) + parts[1].sum(-1, keepdim=True)).log()
            wide = F.pad(wide, (0, lanes)) if lanes else wide
            made = (wide / temperature if temperature != 1.0 else wide).log_softmax(-1)
            return made[..., : logits.shape[-1]].float()

        return run

    return make


def plain_logprobs(site: Site, point: str) -> Run:
    """log-softmax spelled out, for the split of its sum to be the only difference."""

    def run(logits: Tensor) -> Tensor:
        wide = logits.to(torch.float32)
        top = wide.amax(-1, keepdim=True)
        return wide - top - (wide - top).exp().sum(-1, keepdim=True).log()

    return run


# Inputs.


def other_tokens(site: Site, point: str) -> Run:
    return lambda tokens, positions: (tokens.where(tokens % 7 != 3, tokens + 1), positions)


def other_positions(site: Site, point: str) -> Run:
    return lambda tokens, positions: (tokens, positions + 1)


def other_rows(site: Site, point: str) -> Run:
    return lambda ids: site.run(ids + 1)
