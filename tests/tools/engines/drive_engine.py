"""In the engine's interpreter: one engine, a list of steps, their rows as JSON. Usage: STAGE SPEC OUT."""

from __future__ import annotations

import importlib
import json
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np

STAGE, SPEC, OUT = sys.argv[1:]
sys.path.insert(0, STAGE)


def main() -> None:
    with open(SPEC, encoding="utf-8") as file:
        spec = json.load(file)
    result: dict[str, Any] = {"steps": {}, "error": None}
    error = importlib.import_module("bitgate_worker.engine").EngineError
    try:
        drive(spec, result)
    except error as failure:
        result["error"] = {"code": failure.code, "message": failure.message}
    with open(OUT, "w", encoding="utf-8") as file:
        json.dump(result, file)


def drive(spec: dict[str, Any], result: dict[str, Any]) -> None:
    weights = importlib.import_module("bitgate_worker.weights")
    sequences = importlib.import_module("bitgate_worker.sequences").Sequences.of(spec["sequences"])
    rank, world = spec.get("place", [0, 1])
    job = SimpleNamespace(
        module=spec.get("module"),
        place=SimpleNamespace(rank=rank, world_size=world, local_rank=rank),
        progress=lambda share, message: None,
    )
    modules = importlib.import_module("bitgate_worker.table").ENGINES
    engine = importlib.import_module(f"bitgate_worker.{modules[spec['engine']]}").ENGINE(
        spec["model"], spec["options"], job
    )
    digest = weights.digest_of(engine.weights())
    result["weights"] = {"root": digest.root(), "unreadable": digest.unreadable, "tensors": len(digest.by_name)}
    result["checkpoint"] = weights.checkpoint_digest(spec["model"]).root()
    for step in spec["steps"]:
        if step["kind"] == "perturb":
            result["steps"][step["name"]] = canary(engine, step, sequences)
            continue
        rows = engine.run(step, sequences)
        result["steps"][step["name"]] = {"rows": keyed(rows), "info": rows.info, "computation": rows.computation}
        if step["kind"] == "generate":
            sampled: dict[int, list[int]] = {}
            for sequence, token in zip(
                rows.columns["sequence"].tolist(), rows.columns["token_id"].tolist(), strict=True
            ):
                sampled.setdefault(sequence, []).append(token)
            sequences = sequences.with_responses(sampled)
    result["describe"] = engine.describe()
    engine.close()


def keyed(rows: Any) -> dict[str, list[int]]:
    """'sequence position' -> token, bits of the logprob, phase, chunk, batch."""
    columns = {name: np.asarray(value) for name, value in rows.columns.items()}
    count = len(columns["sequence"])
    bits = np.ascontiguousarray(columns["logprob"], np.float32).view(np.uint32)
    extra = [columns.get(name, np.zeros(count)).astype(int) for name in ("phase", "chunk", "batch")]
    return {
        f"{columns['sequence'][i]} {columns['position'][i]}": [int(columns["token_id"][i]), int(bits[i])]
        + [int(column[i]) for column in extra]
        for i in range(count)
    }


def canary(engine: Any, step: dict[str, Any], sequences: Any) -> dict[str, Any]:
    prefill = {"kind": "prefill", "name": "canary", "groups": step["groups"]}
    before = keyed(engine.run(prefill, sequences))
    touched = engine.perturb(1)
    during = keyed(engine.run(prefill, sequences))
    touched.undo()
    after = keyed(engine.run(prefill, sequences))
    return {"before": before, "during": during, "after": after, "touched": touched.info()}


main()
