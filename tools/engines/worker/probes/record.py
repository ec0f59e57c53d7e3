"""What a user's `watch(state, record)` is given: `record` takes a tensor at a point, in the layout that he has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import expert_rows, scales
from .recorder import Recorder
from .shards import ReplicasDiffer, Shard, whole

Give = Callable[[int, str, Tensor], None]


class Record:
    """`record(layer, point, tensor)`: leading sizes are the rows. The other methods bring a layout to that first."""

    def __init__(self, recorder: Recorder, give: Give, tokens: Callable[[], int]) -> None:
        self._recorder, self._give, self._tokens = recorder, give, tokens

    def __call__(self, layer: int, point: str, tensor: Tensor) -> None:
        if not isinstance(tensor, Tensor):
            got = type(tensor).__name__
            raise TypeError(
                f"record({layer}, {point!r}, ...): got a {got}; allowed is a tensor, leading sizes its rows"
            )
        self._give(layer, point, tensor)

    def shards(self, layer: int, point: str, held: Sequence[Shard], dims: str) -> None:
        """Every rank's shard as (place on each axis, tensor), put together by the dims string (shards.py)."""
        try:
            self._give(layer, point, self._kept(lambda: whole(held, dims)))
        except ReplicasDiffer as error:
            self._recorder.replicas[f"{layer}.{point}"] = str(error)
        except ValueError as error:
            self._recorder.problems[f"{layer}.{point}"] = str(error)

    def quantised(
        self, layer: int, point: str, payload: Tensor, scale: Tensor, *, groups: int, layout: str = "rows"
    ) -> None:
        """Payload [R, W] and scales apart, as the points `NAME.scale` and `NAME.payload` (layouts in scales.py)."""
        try:
            made = self._kept(lambda: scales.canonical(scale, layout, payload.shape[0], groups))
        except ValueError as error:
            self._recorder.problems[f"{layer}.{point}.scale"] = str(error)
            return
        self._give(layer, f"{point}.scale", made)
        self._give(layer, f"{point}.payload", payload)

    def experts(
        self,
        layer: int,
        point: str,
        rows: Tensor,
        *,
        tokens: Tensor,
        slots: Tensor,
        of: int,
        experts: Tensor | None = None,
        counts: Tensor | None = None,
    ) -> None:
        """Rows of experts, `of` to a token: contiguous with `experts` [N], or masked with `counts` [E].

        `tokens` are numbers of rows of this forward. Becomes the points `NAME.experts`, which experts a token's rows
        are of, and `NAME`, the rows in their order.
        """  # fmt: skip
        if (experts is None) == (counts is None):
            raise ValueError("experts(): give `experts` for contiguous rows, or `counts` for a masked buffer")
        try:
            ids, flat = self._kept(lambda: self._canonical(rows, tokens, slots, of, experts, counts))
        except ValueError as error:
            self._recorder.problems[f"{layer}.{point}"] = str(error)
            return
        self._give(layer, f"{point}.experts", ids)
        self._give(layer, point, flat)

    def _canonical(
        self, rows: Tensor, tokens: Tensor, slots: Tensor, of: int, experts: Tensor | None, counts: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if experts is not None:
            held = expert_rows.contiguous(rows, experts, tokens, slots, int(experts.max()) + 1 if len(experts) else 0)
        else:
            assert counts is not None
            held = expert_rows.masked(rows, counts, tokens, slots)
        flat, ids = held.by_token(self._tokens(), of)
        return ids, flat

    def _kept(self, make: Callable[[], Any]) -> Any:
        """Bringing it into one form is part of the region: whoever is traced then has these operators in it too."""
        with torch.no_grad():
            return make()
