"""What the trainer's operators do, measured in the engine's interpreter. Usage: vllm_lab.py FOLDER REPORT.json

FOLDER holds tiny checkpoints qwen3, llama and qwen3_moe; a checkpoint `stepped` is written into it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from backwards import one_percent_in_one_place, vjps, whole_model
from dispatched import dispatch
from refused import edits, refusals, stale_pack
from shared import GENERATOR, checkpoint, equal, model_of, ours, sequences, table, visible

# isort: split
# torch comes after `shared`, which sets the variables that vLLM reads.
import torch

guard, update = ours("kernels.guard"), ours("kernels.update")


def bit_patterns() -> dict[str, bool]:
    """The value passes through untouched, where value + (graph - graph.detach()) would not."""
    odd = torch.tensor([-0.0, float("inf"), float("-inf"), 1.0])
    leaf = torch.ones(4, requires_grad=True)
    call = visible.Call("odd", lambda x: odd.clone(), visible.from_graph(lambda x: x * 3))
    out = visible.visible(call, leaf)
    out.backward(torch.ones(4))
    graph = leaf * 3
    sum_form = odd + (graph - graph.detach())
    return {
        "visible_keeps_bits": equal(out, odd),
        "sum_keeps_bits": equal(sum_form, odd),
        "gradient": torch.equal(leaf.grad, torch.full((4,), 3.0)),
    }


def fingerprints() -> dict[str, bool]:
    seen, whole = True, torch.randn(3 * 8192 + 5, generator=GENERATOR).bfloat16()
    before = guard.fingerprint(whole)
    for index in (0, 1, 4095, 4096, 8191, 8192, len(whole) - 5, len(whole) - 1):
        edited = whole.clone()
        edited.view(torch.int16)[index] += 1
        seen = seen and guard.fingerprint(edited) != before
    moved = whole.clone()
    moved[0], moved[8192] = whole[8192], whole[0]
    square = torch.randn(64, 100, generator=GENERATOR)
    return {
        "single_words": seen,
        "moved_words": guard.fingerprint(moved) != before,
        "layout_is_not_content": guard.fingerprint(square.t()) == guard.fingerprint(square.t().contiguous())
        and guard.fingerprint(whole[1:]) == guard.fingerprint(whole[1:].clone()),
    }


def tiles() -> dict[str, Any]:
    """A layer's tiled product, made and dropped as it is when weights are loaded and packed again."""
    module = ours("tiles")
    weight = torch.randn(8, 16, generator=GENERATOR)
    x = torch.randn(21, 16, generator=GENERATOR)
    before = len(module._PRODUCTS)
    product = module.tiled(lambda rows: rows @ weight.T, 8)
    same = torch.equal(product(x), module.tiled_rows(lambda rows: rows @ weight.T, x))
    kept = len(module._PRODUCTS) == before + 1
    for _ in range(5):
        product = module.tiled(lambda rows: rows @ weight.T, 8)
    del product
    return {"same_bits": same, "kept_while_used": kept, "left_behind": len(module._PRODUCTS) - before}


def stepped(path: Path, out: Path) -> dict[str, Any]:
    model, given = model_of(path), sequences()
    done = update.one_step(model, given, [10, 5, 8], [1.0, -0.5, 0.25], learning_rate=1e-2)
    checkpoint.save(model, str(path), str(out))
    return {"loss": done.loss, "changed": done.changed, "parameters": done.parameters}


def main() -> None:
    folder = Path(sys.argv[1])
    dense, sparse = folder / "qwen3", folder / "qwen3_moe"
    found = {
        "rows": list(table.TABLE),
        "vjps": vjps(sparse),
        "models": {name: whole_model(folder / name) for name in ("qwen3", "llama", "qwen3_moe")},
        "one_percent_in_one_place": one_percent_in_one_place(sparse),
        "edits": edits(dense),
        "stale_pack_noticed": stale_pack(dense),
        "refusals": refusals(dense, folder),
        "dispatch": dispatch(dense),
        "bit_patterns": bit_patterns(),
        "fingerprints": fingerprints(),
        "tiles": tiles(),
        "step": stepped(dense, folder / "stepped"),
        "zero_advantages": zero_advantages(dense),
        "threads": torch.get_num_threads(),
    }
    Path(sys.argv[-1]).write_text(json.dumps(found, allow_nan=False), encoding="utf-8")


def zero_advantages(path: Path) -> str:
    try:
        update.one_step(model_of(path), sequences(), [1, 1, 1], [0.0, 0.0, 0.0], learning_rate=1e-3)
    except ValueError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    main()
