"""What the worker wrote of an observed step: a digest of every row at every point."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from bitgate.tools.bisect.graph import Point

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Series:
    """keys int64 [R, 2] (sequence, position), sorted; digest uint64 [R, 2].

    whole: width of the engine's tensor that this is a part of, or 0.
    """

    keys: Array
    digest: Array
    dtype: str
    width: int
    whole: int = 0


@dataclass
class Observation:
    points: dict[Point, Series] = field(default_factory=dict)
    order: dict[Point, int] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    replicas: dict[str, str] = field(default_factory=dict)
    bytes: int = 0


def read_observation(folders: Sequence[Path]) -> Observation:
    """The union over ranks, each of which observed rows of its own."""
    seen = Observation()
    for folder in folders:
        body = json.loads((folder / "points.json").read_text(encoding="utf-8"))
        arrays = load_file(folder / "hashes.safetensors")
        owner = dict(arrays["links"].tolist()) if "links" in arrays else {}
        seen.problems |= body["problems"]
        seen.replicas |= body.get("replicas", {})
        seen.bytes += sum(path.stat().st_size for path in folder.iterdir())
        for number, entry in enumerate(body["points"]):
            point = (int(entry["layer"]), str(entry["point"]))
            keys = arrays[f"{owner[entry['n']]}.keys"]
            digest = arrays[f"{entry['n']}.digest"]
            seen.order.setdefault(point, number)
            seen.points[point] = _joined(seen.points.get(point), keys, digest, entry)
    return seen


def _joined(before: Series | None, keys: Array, digest: Array, entry: dict[str, Any]) -> Series:
    if before is not None:
        keys, digest = np.concatenate([before.keys, keys]), np.concatenate([before.digest, digest])
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    return Series(keys[order], digest[order], str(entry["dtype"]), int(entry["width"]), int(entry.get("whole", 0)))
