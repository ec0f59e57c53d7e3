"""Run by the engine's interpreter: puts faults into a small transformers model and localises them, one JSON line each.

`lab.py CHECKPOINT WORK N|all [SEED]`: a stratified choice of N faults of the matrix, or the whole of it. The engine is
loaded once; everything after that is the product's own path from hashing to class, and the repro script is run too.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from bitgate.tools.bisect.cause import localise
from bitgate.tools.bisect.observation import read_observation
from bitgate.tools.bisect.pairs import target_of
from bitgate.tools.engines.worker.job import Job
from bitgate.tools.engines.worker.probes.classify import classify
from bitgate.tools.engines.worker.probes.experiments.case import Case
from bitgate.tools.engines.worker.probes.observe import observed
from bitgate.tools.engines.worker.probes.repro import script, shrunk, write_repro
from bitgate.tools.engines.worker.probes.rows import shared_rows
from bitgate.tools.engines.worker.probes.stored import load_program
from bitgate.tools.engines.worker.sequences import Sequences
from bitgate.tools.engines.worker.table import load_engine

LINEARS = {
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "o_proj": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "mlp_out": "mlp.down_proj",
}
NORMS = {
    "attn_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
}


@dataclass(frozen=True)
class Fault:
    """`make(module)` gives the faulty forward of the module at `path`; `partner`: what the other side gets."""

    label: str
    point: str
    path: str
    make: Callable[[Any], Callable[..., Any]]
    partner: Callable[[Any], Callable[..., Any]] | None = None
    company: bool = False
    dtype: str = "bfloat16"


def weight_bytes(module: Any) -> Callable[..., Any]:
    weight = module.weight.detach().clone()
    flat = weight.view(-1)
    flat[::7] = flat[::7] * 1.0625
    if weight.ndim == 2:
        return lambda x: F.linear(x, weight)
    return lambda x: normed(x, weight, module.variance_epsilon)


def normed(x: Any, weight: Any, eps: float) -> Any:
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def split_sum(module: Any) -> Callable[..., Any]:
    half = module.weight.shape[1] // 2

    def forward(x: Any) -> Any:
        weight = module.weight
        left = F.linear(x[..., :half].float(), weight[:, :half].float())
        right = F.linear(x[..., half:].float(), weight[:, half:].float())
        return (left + right).to(x.dtype)

    return forward


def scaled(module: Any) -> Callable[..., Any]:
    run = type(module).forward
    return lambda x: run(module, x) * 1.5


def noisy(module: Any) -> Callable[..., Any]:
    run = type(module).forward

    def forward(x: Any) -> Any:
        made = run(module, x)
        return made + torch.rand_like(made) * 0.05

    return forward


def unwritten(module: Any) -> Callable[..., Any]:
    run = type(module).forward

    def forward(x: Any) -> Any:
        made = run(module, x)
        scratch = torch.empty(made.shape, dtype=made.dtype)
        return made + 0.125 + torch.where(scratch == scratch, 0.0, 1.0).to(made.dtype)

    return forward


def zero(sign: float) -> Callable[[Any], Callable[..., Any]]:
    def make(module: Any) -> Callable[..., Any]:
        run = type(module).forward
        return lambda x: torch.cat([run(module, x)[..., :-1], torch.full((*x.shape[:-1], 1), sign, dtype=x.dtype)], -1)

    return make


def late_cast(module: Any) -> Callable[..., Any]:
    """The weight multiplied before the rounding, as some kernels do."""

    def forward(x: Any) -> Any:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)
        return (module.weight * wide).to(x.dtype)

    return forward


def by_company(module: Any) -> Callable[..., Any]:
    plain, other = type(module).forward, split_sum(module)
    return lambda x: other(x) if x.shape[0] * x.shape[1] > 40 else plain(module, x)


def catalogue(layers: int) -> list[tuple[int, Fault]]:
    faults = []
    for point, path in LINEARS.items():
        faults += [
            Fault("weight_bytes", point, path, weight_bytes),
            Fault("reduction_order", point, path, split_sum, dtype="float32"),
            Fault("semantic", point, path, scaled),
            Fault("nondeterminism", point, path, noisy),
            Fault("uninitialised_read", point, path, unwritten),
            Fault("sign_or_payload", point, path, zero(-0.0), zero(0.0)),
            Fault("batch_variance", point, path, by_company, by_company, company=True, dtype="float32"),
        ]
    for point, path in NORMS.items():
        faults += [
            Fault("weight_bytes", point, path, weight_bytes),
            Fault("precision", point, path, late_cast),
            Fault("semantic", point, path, scaled),
            Fault("nondeterminism", point, path, noisy),
            Fault("uninitialised_read", point, path, unwritten),
        ]
    return [(layer, fault) for layer in range(layers) for fault in faults]


def loaded(checkpoint: str, dtype: str) -> Any:
    job = Job(1, "r", "s", "transformers", checkpoint, 0, {"dtype": dtype}, "", [], "", "", 5.0, 1, None)
    engine: Any = load_engine(job)
    torch.manual_seed(3)
    with torch.no_grad():
        # Norm weights of one would make every cast around them invisible.
        for name, parameter in engine._model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.copy_(1 + 0.3 * torch.randn_like(parameter))
    return engine


class Lab:
    def __init__(self, checkpoint: str, work: Path) -> None:
        self.engines = {dtype: loaded(checkpoint, dtype) for dtype in ("bfloat16", "float32")}
        self.engine: Any = self.engines["bfloat16"]
        self.layers = len(self.engine._model.model.layers)
        self.work = work
        rng = np.random.default_rng(5)
        draws = [(rng.integers(0, 200, 21).tolist(), rng.integers(0, 200, 2).tolist()) for _ in range(2)]
        self.sequences = Sequences.of(draws)

    def one(self, number: int, layer: int, fault: Fault, side: int, processes: int) -> dict[str, Any]:
        started = time.monotonic()
        self.engine = self.engines[fault.dtype]
        sides = [fault.partner, fault.make] if side else [fault.make, fault.partner]
        groups = ([[0], [1]], [[0, 1]]) if fault.company else ([[0, 1]], [[0, 1]])
        folder = self.work / f"{number}"
        seen = []
        for name, make, group in zip("ab", sides, groups, strict=True):
            with self.faulty(layer, fault, make):
                self.observe(folder / name, group, None)
            seen.append(read_observation([folder / name / "step"]))
        found = localise(*seen)
        made: dict[str, Any] = {"label": fault.label, "point": f"{layer}.{fault.point}", "side": "ab"[side]}
        if found.cause is None:
            return made | {"found": None, "class": None if not found.different else "unknown"}
        target = target_of(found.cause.node, found.cause.row, found.layers).model_dump()
        for name, make, group in zip("ab", sides, groups, strict=True):
            with self.faulty(layer, fault, make):
                self.observe(folder / name, group, target)
        at = found.cause.node.point
        made |= {"found": f"{at[0]}.{at[1]}"}
        return made | self.judge(folder, found, fault, processes) | {"seconds": round(time.monotonic() - started, 2)}

    def judge(self, folder: Path, found: Any, fault: Fault, processes: int) -> dict[str, Any]:
        cause = found.cause
        a, b = (load_program(str(folder / name / "step")) for name in "ab")
        case = Case(cause.node.kind, a, b, shared_rows(a, b, *cause.row), fault.company, ("a", "b"))
        report = classify(case)
        about = {"title": "lab", "lines": {}}
        if processes:
            proof = write_repro(str(folder / "repro"), case, shrunk(case), about)
            reproduces = proof["reproduces"]
        else:
            reproduces = in_process(case, about)
        return {
            "class": report.label,
            "mechanism": report.mechanism,
            "reproduces": reproduces,
            "tried": report.experiments,
        }

    def observe(self, folder: Path, groups: list[list[int]], target: Any) -> None:
        step = {"kind": "prefill", "name": "step", "groups": groups, "packing": "engine", "company": []}
        observed("transformers", self.engine, {**step, "observe": {"target": target}}, self.sequences, str(folder))

    @contextlib.contextmanager
    def faulty(self, layer: int, fault: Fault, make: Any) -> Iterator[None]:
        module = self.engine._model.model.layers[layer].get_submodule(fault.path)
        if make is None:
            yield
            return
        module.forward = make(module)
        try:
            yield
        finally:
            del module.forward


def in_process(case: Case, about: dict[str, Any]) -> bool:
    """The script's own two functions, without starting an interpreter for each."""
    small = shrunk(case)
    text = script(small, about, "0" * 64, {}, torch.get_num_threads())
    names: dict[str, Any] = {"__name__": "repro", "__file__": "repro.py"}
    exec(compile(text, "repro.py", "exec"), names)
    values = {f"a.{n}": t for n, t in small.a.values.items()} | {f"b.{n}": t for n, t in small.b.values.items()}
    names["load"] = lambda: values
    return bool(names["main"]() == 1)


def chosen(layers: int, wanted: str, seed: int) -> list[tuple[int, Fault, int]]:
    every = [(layer, fault, side) for layer, fault in catalogue(layers) for side in (0, 1)]
    if wanted == "all":
        return every
    rng = random.Random(seed)
    rng.shuffle(every)
    by_label: dict[str, list[Any]] = {}
    for entry in every:
        by_label.setdefault(entry[1].label, []).append(entry)
    # One of each class in turn, until there are enough.
    rounds = max(map(len, by_label.values()))
    turned = [group[i] for i in range(rounds) for group in by_label.values() if i < len(group)]
    return turned[: int(wanted)]


def main() -> None:
    checkpoint, work, wanted = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    lab = Lab(checkpoint, work)
    seed = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    for number, (layer, fault, side) in enumerate(chosen(lab.layers, wanted, seed)):
        with open(os.devnull, "w", encoding="utf-8") as quiet, contextlib.redirect_stdout(quiet):
            found = lab.one(number, layer, fault, side, processes=number == 0)
        sys.stdout.write(json.dumps(found, allow_nan=False) + "\n")
        sys.stdout.flush()
        subprocess.run(["rm", "-rf", str(work / str(number))], check=True)


if __name__ == "__main__":
    main()
