"""Run by the engine's interpreter: a trainer of the inference kernels, one operator swapped for its namesake.

`swap_lab.py CHECKPOINT WORK [SWAP …]`: one JSON line an operator. The engine is loaded once; everything after that is
the product's own path from hashing to the repro in fresh processes, and then the pair once more with the swap undone.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from bitgate.tools.bisect.cause import localise
from bitgate.tools.bisect.observation import read_observation
from bitgate.tools.bisect.pairs import target_of
from bitgate.tools.engines.worker.job import Job
from bitgate.tools.engines.worker.probes.classify import classify
from bitgate.tools.engines.worker.probes.experiments.case import Case
from bitgate.tools.engines.worker.probes.observe import observed
from bitgate.tools.engines.worker.probes.repro import shrunk, write_repro
from bitgate.tools.engines.worker.probes.rows import shared_rows
from bitgate.tools.engines.worker.probes.stored import load_program
from bitgate.tools.engines.worker.sequences import Sequences
from bitgate.tools.engines.worker.table import load_engine

Forward = Callable[..., Any]
NAMES = ("engine", "swapped")


def cpp_norm(layer: Any, chosen: Forward) -> Forward:
    from vllm import _custom_ops as ops

    def forward(x: Any, residual: Any = None) -> Any:
        if residual is not None:
            return chosen(x, residual)
        out = torch.empty_like(x)
        ops.rms_norm(out, x.contiguous(), layer.weight.data, layer.variance_epsilon)
        return out

    return forward


def cpp_fused_norm(layer: Any, chosen: Forward) -> Forward:
    from vllm import _custom_ops as ops

    def forward(x: Any, residual: Any = None) -> Any:
        if residual is None:
            return chosen(x)
        x, residual = x.clone(), residual.clone()
        ops.fused_add_rms_norm(x, residual, layer.weight.data, layer.variance_epsilon)
        return x, residual

    return forward


def cpp_silu(layer: Any, chosen: Forward) -> Forward:
    def forward(x: Any) -> Any:
        out = x.new_empty(*x.shape[:-1], x.shape[-1] // 2)
        torch.ops._C.silu_and_mul(out, x.contiguous())
        return out

    return forward


def native_rope(layer: Any, chosen: Forward) -> Forward:
    """Here the engine runs the C++ kernel, and the namesake is torch's."""
    forward: Forward = layer.forward_native
    return forward


SWAPS: dict[str, tuple[str, Callable[[Any, Forward], Forward]]] = {
    "rms_norm": ("rms_norm", cpp_norm),
    "fused_add_rms_norm": ("rms_norm", cpp_fused_norm),
    "rotary_embedding": ("rotary_embedding", native_rope),
    "silu_and_mul": ("silu_and_mul", cpp_silu),
}
"""What is swapped -> the trainer's row that holds it, and the other function."""


class Lab:
    def __init__(self, checkpoint: str, work: Path) -> None:
        options = {"enforce_eager": True, "max_model_len": 128}
        job = Job(1, "r", "s", "vllm_kernels", checkpoint, 0, options, "", [], "", "", 5.0, 1, None)
        self.engine = cast(Any, load_engine(job))
        torch.manual_seed(3)
        with torch.no_grad():
            # Norm weights of one would make every cast around them invisible.
            for name, parameter in self.engine._model.named_parameters():
                if name.endswith("norm.weight"):
                    parameter.copy_(1 + 0.3 * torch.randn_like(parameter))
        self.work = work
        rng = np.random.default_rng(5)
        draws = [(rng.integers(0, 1000, 21).tolist(), rng.integers(0, 1000, 2).tolist()) for _ in range(2)]
        self.sequences = Sequences.of(draws)

    def one(self, name: str, proofs: int) -> dict[str, Any]:
        folder = self.work / name
        found = self.compared(folder, name)
        if found.cause is None:
            return {"swap": name, "point": None}
        self.compared(folder, name, target_of(found.cause.node, found.cause.row, found.layers).model_dump())
        a, b = (load_program(str(folder / side / "step")) for side in NAMES)
        case = Case(found.cause.node.kind, a, b, shared_rows(a, b, *found.cause.row), False, NAMES)
        report = classify(case)
        proof = write_repro(str(folder / "repro"), shrunk(case), {"title": name, "lines": {}}, proofs=proofs)
        return {
            "swap": name,
            "point": ".".join(map(str, found.cause.node.point)),
            "class": report.label,
            "mechanism": report.mechanism,
            "tried": report.experiments,
            "exit_codes": proof["exit_codes"],
            "different_when_undone": len(self.compared(folder, None).different),
        }

    def compared(self, folder: Path, swap: str | None, target: dict[str, Any] | None = None) -> Any:
        for side, wanted in zip(NAMES, (None, swap), strict=True):
            with self.swapped(wanted):
                self.observe(folder / side, target)
        return None if target else localise(*(read_observation([folder / side / "step"]) for side in NAMES))

    def observe(self, folder: Path, target: Any) -> None:
        step = {"kind": "prefill", "name": "step", "groups": [[0, 1]], "packing": "engine", "company": []}
        observed("vllm_kernels", self.engine, {**step, "observe": {"target": target}}, self.sequences, str(folder))

    @contextlib.contextmanager
    def swapped(self, name: str | None) -> Iterator[None]:
        row, make = SWAPS.get(name or "", ("", None))
        layers = [op._layer for op in self.engine._operators._opened.get(row, [])]
        chosen = [layer._forward_method for layer in layers]
        try:
            for layer, forward in zip(layers, chosen, strict=True):
                if make is not None:
                    layer._forward_method = make(layer, forward)
            yield
        finally:
            for layer, forward in zip(layers, chosen, strict=True):
                layer._forward_method = forward


def main() -> None:
    lab = Lab(sys.argv[1], Path(sys.argv[2]))
    for number, name in enumerate(sys.argv[3:] or SWAPS):
        with open(os.devnull, "w", encoding="utf-8") as quiet, contextlib.redirect_stdout(quiet):
            # Each fresh process loads the engine's kernels: that three agree is shown once.
            found = lab.one(name, proofs=1 if number else 3)
        sys.stdout.write(json.dumps(found, allow_nan=False) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
