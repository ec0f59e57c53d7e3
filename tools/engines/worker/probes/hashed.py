"""The hashes of an observed step: what each point gathers, and the two files that are written of it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import Tensor

from .hashing import digests

Keys = Any
"""int64 [R, 2]: (sequence, position) of each row of a forward; -1 for rows of nobody we asked for."""
Point = tuple[int, str]


@dataclass
class Series:
    """One point of one layer, forward after forward: keys int64 [R, 2] and sums int32 [R, 16] of each.

    whole: width of the engine's tensor that the point is a part of (fused projections); 0 where it is all of it.
    """

    salt: int
    dtype: str
    width: int
    whole: int = 0
    keys: list[Keys] = field(default_factory=list)
    sums: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class Owned:
    """The rows of a forward that somebody asked for: their numbers, and their keys."""

    rows: Any
    keys: Keys

    @classmethod
    def of(cls, keys: Keys) -> Owned:
        rows = np.flatnonzero(keys[:, 0] >= 0)
        return cls(rows, np.ascontiguousarray(keys[rows]))


@dataclass(frozen=True)
class Rows:
    """keys of all forwards; of each key the first row is kept, later ones were computed again (after preemption)."""

    keys: Keys
    first: Any
    firsts: Any
    """For every row, the first row of its key."""

    @classmethod
    def of(cls, forwards: Sequence[Keys]) -> Rows:
        keys = np.concatenate(forwards)
        codes = (keys[:, 0] << 32) + keys[:, 1]
        _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        return cls(keys, np.sort(first), first[inverse.reshape(-1)])

    @property
    def repeated(self) -> int:
        return len(self.keys) - len(self.first)

    def differing(self, digest: Any) -> int:
        """How many of the rows that came again were others than the first time."""
        return int((digest != digest[self.firsts]).any(axis=1).sum()) if self.repeated else 0


def save_hashes(folder: str, points: Mapping[Point, Series], about: Mapping[str, Any]) -> dict[str, int]:
    """Writes `hashes.safetensors` and `points.json` (with `about`); returns counts of points and repeated rows."""
    arrays: dict[str, Any] = {}
    index, links = [], []
    stored: dict[tuple[int, ...], tuple[int, Rows]] = {}
    repeated = unequal = 0
    for number, ((layer, name), series) in enumerate(points.items()):
        if not series.keys:
            continue
        # Points of one step mostly have the same rows, as the same objects: these are sorted and stored once.
        same = tuple(map(id, series.keys))
        if same not in stored:
            stored[same] = (number, Rows.of(series.keys))
        owner, rows = stored[same]
        found = digests(torch.cat(series.sums).cpu().numpy(), rows.keys, series.salt)
        repeated, unequal = repeated + rows.repeated, unequal + rows.differing(found)
        if owner == number:
            arrays[f"{number}.keys"] = np.ascontiguousarray(rows.keys[rows.first])
        arrays[f"{number}.digest"] = np.ascontiguousarray(found[rows.first])
        links.append([number, owner])
        index.append(
            {
                "layer": layer,
                "point": name,
                "dtype": series.dtype,
                "width": series.width,
                "whole": series.whole,
                "n": number,
            }
        )
    arrays["links"] = np.asarray(links, np.int64).reshape(-1, 2)
    save_file(arrays, os.path.join(folder, "hashes.safetensors"))
    with open(os.path.join(folder, "points.json"), "w", encoding="utf-8") as file:
        json.dump({"points": index, **about}, file, allow_nan=False)
    return {"points": len(index), "recomputed_rows": repeated, "recomputed_rows_that_differ": unequal}
