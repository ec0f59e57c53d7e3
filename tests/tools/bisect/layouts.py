"""Run by the engine's interpreter: shards, scales and expert rows brought into one form; prints the results as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from bitgate.tools.engines.worker.probes.expert_rows import contiguous, masked
from bitgate.tools.engines.worker.probes.record import Record
from bitgate.tools.engines.worker.probes.recorder import Recorder
from bitgate.tools.engines.worker.probes.scales import canonical
from bitgate.tools.engines.worker.probes.shards import whole

SIZE = 8


def said(make: Callable[[], Any]) -> str:
    try:
        make()
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def shards() -> dict[str, Any]:
    full = torch.arange(16 * SIZE, dtype=torch.float32).reshape(1, 16, SIZE)
    tp = [({"tp": r}, part) for r, part in enumerate(full.chunk(2, 2))]
    # Zigzag by its definition: of 2n chunks rank r holds r and 2n - 1 - r.
    four = full.chunk(4, 1)
    cp = [({"cp": r}, torch.cat([four[r], four[3 - r]], 1)) for r in range(2)]
    both = [({**at, "tp": r}, part) for at, held in cp for r, part in enumerate(held.chunk(2, 2))]
    replica = [({"ep": 0}, full), ({"ep": 1}, full.clone())]
    other = full.clone()
    other[0, 3, 5] = -other[0, 3, 5]
    return {
        "tp": torch.equal(whole(tp, "b s h[tp]"), full),
        "tp in any order": torch.equal(whole(tp[::-1], "b s h[tp]"), full),
        "cp zigzag": torch.equal(whole(cp, "b s[cp:zigzag] h"), full),
        "both": torch.equal(whole(both, "b s[cp:zigzag] h[tp] # ep:replicated"), full),
        "replicas": torch.equal(whole(replica, "b s h # ep:replicated"), full),
        "other replica": said(lambda: whole([({"ep": 0}, full), ({"ep": 1}, other)], "b s h")),
        "sign of zero": said(lambda: whole([({"dp": 0}, torch.zeros(1, 1)), ({"dp": 1}, -torch.zeros(1, 1))], "s h")),
        "missing": said(lambda: whole([tp[1]], "b s h[tp]")),
        "partial": said(lambda: whole(tp, "b s h # tp:partial")),
        "ordered": torch.equal(whole([({"tp": 0}, full), ({"tp": 1}, full)], "b s h # tp:partial=ordered"), full * 2),
        "unknown cut": said(lambda: whole(tp, "b s h[tp:spiral]")),
        "unreadable": said(lambda: whole(tp, "b s-1 h[tp]")),
        "dimensions": said(lambda: whole(tp, "s h[tp]")),
        "twice": said(lambda: whole(tp, "b s[tp] h[tp]")),
    }


def scales() -> dict[str, Any]:
    exponents = torch.tensor([[120, 127, 130, 255, 1], [127, 126, 125, 124, 0]], dtype=torch.uint8)
    floats = torch.tensor([[2.0**-7, 1.0, 8.0, float("nan"), 2.0**-126], [1.0, 0.5, 0.25, 0.125, 2.0**-127]])
    padded = torch.nn.functional.pad(exponents, (0, 3)).contiguous().view(torch.int32)
    tall = torch.nn.functional.pad(floats.t(), (0, 6), value=9.0)

    def same(made: torch.Tensor) -> bool:
        return bool(torch.equal(made.nan_to_num(7.0), floats.nan_to_num(7.0)))

    return {
        "floats": same(canonical(floats, "rows", 2, 5)),
        "bytes": same(canonical(exponents, "rows", 2, 5)),
        "packed": same(canonical(padded, "packed", 2, 5)),
        "packed and transposed": same(canonical(padded.t(), "packed_transposed", 2, 5)),
        "transposed and padded": same(canonical(tall, "transposed", 2, 5)),
        "another layout": said(lambda: canonical(floats, "blocked", 2, 5)),
        "another shape": said(lambda: canonical(floats, "transposed", 2, 5)),
        "packed floats": said(lambda: canonical(floats, "packed", 2, 5)),
    }


def experts() -> dict[str, Any]:
    torch.manual_seed(0)
    ids = torch.tensor([[2, 0], [1, 2], [2, 3], [0, 1]])
    tokens = torch.arange(4)[:, None].expand(4, 2).reshape(-1)
    slots = torch.arange(2).repeat(4)
    rows = torch.randn(8, 3)
    mixed = torch.tensor([5, 2, 7, 0, 3, 6, 1, 4])
    flat = contiguous(rows[mixed], ids.reshape(-1)[mixed], tokens[mixed], slots[mixed], 5)
    buffer, places = torch.full((5, 4, 3), float("nan")), torch.full((2, 5, 4), -1)
    counts = torch.zeros(5, dtype=torch.int64)
    for row in mixed.flip(0).tolist():
        expert = int(ids.reshape(-1)[row])
        at = int(counts[expert])
        buffer[expert, at], places[0, expert, at], places[1, expert, at] = rows[row], tokens[row], slots[row]
        counts[expert] += 1
    held = masked(buffer, counts, places[0], places[1])
    keys = torch.stack([flat.experts, flat.tokens, flat.slots], 1).tolist()
    dropped = contiguous(rows[1:], ids.reshape(-1)[1:], tokens[1:], slots[1:], 5).by_token(4, 2)
    return {
        "sorted": keys == sorted(keys),
        "counts": [flat.counts.tolist(), held.counts.tolist()],
        "the same rows": torch.equal(flat.rows, held.rows),
        "by token": all(torch.equal(x, y) for x, y in zip(flat.by_token(4, 2), held.by_token(4, 2), strict=True)),
        "of token 0": flat.by_token(4, 2)[1][0].tolist(),
        "dropped": dropped[1][0].tolist(),
        "a slot twice": said(lambda: contiguous(rows[:2], ids[0], torch.zeros(2), torch.zeros(2), 5)),
        "count over capacity": said(lambda: masked(buffer, counts + 9, places[0], places[1])),
    }


def recorded() -> dict[str, Any]:
    recorder, given = Recorder(), {}
    record = Record(recorder, lambda layer, point, tensor: given.update({point: tensor}), lambda: 4)
    recorder.begin(np.asarray([[0, n] for n in range(4)], np.int64))
    half = torch.ones(4, 2)
    record.shards(0, "h", [({"tp": 0}, half), ({"tp": 1}, half)], "t h[tp]")
    record.shards(0, "r", [({"ep": 0}, half), ({"ep": 1}, half + 1)], "t h")
    record.shards(0, "p", [({"tp": 0}, half), ({"tp": 1}, half)], "t h # tp:partial")
    payload = torch.randn(4, 8).to(torch.float8_e4m3fn)
    record.quantised(0, "quant", payload, torch.ones(2, 4), groups=2, layout="transposed")
    record.experts(
        0, "expert_out", torch.ones(4, 2), tokens=torch.arange(4), slots=torch.zeros(4), of=1, experts=torch.arange(4)
    )
    return {
        "points": {name: [list(t.shape), str(t.dtype)] for name, t in given.items()},
        "replicas": recorder.replicas,
        "problems": recorder.problems,
    }


def main() -> None:
    made = {"shards": shards(), "scales": scales(), "experts": experts(), "recorded": recorded()}
    sys.stdout.write(json.dumps(made, allow_nan=False))


if __name__ == "__main__":
    main()
