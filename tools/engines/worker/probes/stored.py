"""Programs as files: tensors in safetensors, operators beside them as JSON.

No bytes are written twice: tensors that are alike are stored once, weights are named in the checkpoint, and rows of
zeros, which is what is left of those that nobody needs, are left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from .gaps import kept, restored
from .held import Checkpoint, alike, read_held
from .program import Op, Program


def save_programs(folder: str, programs: Sequence[Program], checkpoint: str) -> None:
    """`checkpoint`: the model's folder. What it holds is named, not written."""
    os.makedirs(folder, exist_ok=True)
    weights = Checkpoint(checkpoint)
    for number, program in enumerate(programs):
        tensors = {f"value.{n}": v for n, v in program.values.items()} | {"expected": program.expected}
        tensors |= {f"canonical.{n}": v for n, v in program.canonical.items()}
        found = {n: weights.find(v) for n, v in tensors.items() if n.startswith("value.")}
        held = {n: reference for n, reference in found.items() if reference is not None}
        same = alike([(n, t) for n, t in tensors.items() if n not in held])
        stored = {n: tensors[n] for n in dict.fromkeys(same.values())}
        strides = {n: list(tensors[n].stride()) for n in same if not tensors[n].is_contiguous()}
        parts = {n: kept(t.cpu()) for n, t in stored.items()}
        save_file({n: t.clone() for n, (t, _) in parts.items()}, os.path.join(folder, f"program{number}.safetensors"))
        body = {
            "ops": [[op.name, op.args, op.kwargs, op.outs, list(op.writes)] for op in program.ops],
            "inputs": program.inputs,
            "output": program.output,
            "rows": program.rows,
            "notes": {**program.notes, "strides": strides},
            "held": held,
            "same": {n: [other, list(tensors[n].shape)] for n, other in same.items()},
            "gaps": {n: [list(stored[n].shape), places] for n, (_, places) in parts.items() if places is not None},
        }
        with open(os.path.join(folder, f"program{number}.json"), "w", encoding="utf-8") as file:
            json.dump(body, file, allow_nan=False)


def load_program(folder: str, number: int = 0) -> Program:
    stored = load_file(os.path.join(folder, f"program{number}.safetensors"))
    with open(os.path.join(folder, f"program{number}.json"), encoding="utf-8") as file:
        body = json.load(file)
    stored |= {name: restored(stored[name], shape, places) for name, (shape, places) in body["gaps"].items()}
    strides = body["notes"]["strides"]
    tensors = {
        name: restrided(stored[other].reshape(shape), strides.get(name))
        for name, (other, shape) in body["same"].items()
    }
    tensors |= {name: read_held(reference) for name, reference in body["held"].items()}
    values = {name.removeprefix("value."): t for name, t in tensors.items() if name.startswith("value.")}
    ops = [Op(name, args, kwargs, outs, tuple(writes)) for name, args, kwargs, outs, writes in body["ops"]]
    canonical = {n.removeprefix("canonical."): t for n, t in tensors.items() if n.startswith("canonical.")}
    return Program(
        ops, body["inputs"], body["output"], values, tensors["expected"], body["rows"], body["notes"], canonical
    )


def restrided(tensor: Tensor, stride: list[int] | None) -> Tensor:
    if stride is None or 0 in stride:
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype).copy_(tensor)
