"""Run by the engine's interpreter: Triton kernels, noted and launched again; facts as JSON.

On a GPU, or under TRITON_INTERPRET=1 without one.

`launches.py FOLDER`
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from kernels_of_triton import multiplied, scaled_sum, tuned
from torch import Tensor

from bitgate.tools.engines.worker.probes.experiments.case import Case, Report
from bitgate.tools.engines.worker.probes.experiments.leaf import leaf
from bitgate.tools.engines.worker.probes.program import Program
from bitgate.tools.engines.worker.probes.repro import Small, write_repro
from bitgate.tools.engines.worker.probes.rows import Shared, same_bits
from bitgate.tools.engines.worker.probes.shrink import with_rows
from bitgate.tools.engines.worker.probes.stored import load_program, save_programs
from bitgate.tools.engines.worker.probes.tracer import Tracer

Facts = Iterator[tuple[str, bool]]
ROWS, WIDTH = 4, 16
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@triton.jit
def local(x, out, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    tl.store(out + at, tl.load(x + at))


def traced(run: Any, x: Tensor) -> Program:
    tracer = Tracer()
    with torch.no_grad(), tracer:
        tracer.mark((0, "in"), x, x)
        made = run(x)
        tracer.mark((0, "out"), made, made)
    program = tracer.program([(0, "in")], (0, "out"), np.array([[0, n] for n in range(len(x))]))
    assert program is not None
    return program


def region(x: Tensor) -> Tensor:
    """A launch between two operators of torch, whose grid is a function of what it is compiled for."""
    y = x * 3
    out = torch.empty_like(y)
    scaled_sum[lambda meta: (triton.cdiv(y.numel(), meta["BLOCK"]),)](
        y, x, out, y.numel(), 0.5, BLOCK=32, DTYPE=tl.float32, num_warps=2
    )
    return out + 1


def in_place(x: Tensor) -> Tensor:
    y = x.clone()
    multiplied[(ROWS,)](y, 2, WIDTH=WIDTH)
    multiplied[(ROWS,)](y, 2, WIDTH=WIDTH)
    return y


def of_a_view(x: Tensor, factor: int) -> Program:
    """What is written is memory of which the region knows a view alone, as of vLLM's norms in place."""
    tracer = Tracer()
    with torch.no_grad(), tracer:
        view = (x + 0).view(ROWS, WIDTH)
        tracer.mark((0, "in"), view, view)
        multiplied[(ROWS,)](view, factor, WIDTH=WIDTH)
        tracer.mark((0, "out"), view, view)
    program = tracer.program([(0, "in")], (0, "out"), np.array([[0, n] for n in range(ROWS)]))
    assert program is not None
    return program


def first_of(a: Program, b: Program) -> Any:
    report, rows = Report(), torch.arange(ROWS)
    leaf(Case("norm", a, b, Shared(rows, rows, 0), False), report)
    return report.leaf.get("first")


def autotuned(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    tuned[(ROWS,)](x, out)
    return out


def unkept(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    local[(ROWS,)](x, out, WIDTH=WIDTH)
    return out


def names(program: Program) -> list[str]:
    return [op.name for op in program.ops]


def facts(folder: Path) -> Facts:
    x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    program = traced(region, x)
    launch = next(op for op in program.ops if op.name.startswith("triton."))
    yield "a launch is an operator with the name of its kernel", launch.name == "triton.kernels_of_triton:scaled_sum"
    yield "its grid is kept as numbers", launch.args[0] == [2]
    made = [op.outs[0] for op in program.ops if op.name == "aten.empty_like.default"]
    yield "it writes its output and nothing else", list(launch.writes) == made
    yield "launched again it gives the same bits", same_bits(program.result(), program.expected)
    x = x.cpu()
    other = program.run({program.inputs["0.in"]: x + 1})[program.output]
    yield "of other values it computes what the kernel does", torch.allclose(other, (x + 1) * 3 + (x + 1) * 0.5 + 1)
    yield "rows are not cut where a grid is for so many", with_rows(program, [0, 1]) is None
    save_programs(str(folder / "kept"), [program], "")
    yield "written and read it is the same", same_bits(load_program(str(folder / "kept")).result(), program.expected)

    twice = traced(in_place, x.to(DEVICE))
    yield "in place, twice", names(twice).count("triton.kernels_of_triton:multiplied") == 2
    yield "each on what the one before left", torch.equal(twice.result(), x * 4)
    found = first_of(of_a_view(x.to(DEVICE), 2), of_a_view(x.to(DEVICE), 3))
    yield "one that only writes is named where it differs", found == "triton.kernels_of_triton:multiplied"
    picked = traced(autotuned, x.to(DEVICE))
    yield "below an autotuner, with what it chose", names(picked)[-1] == "triton.kernels_of_triton:_tuned"
    yield "which is launched as it ran", picked.ops[-1].kwargs["WIDTH"] == WIDTH
    yield "and gives its bits", same_bits(picked.result(), x * 5)
    refused = list(traced(unkept, x.to(DEVICE)).notes["refused"].values())
    yield "what cannot be imported is named", len(refused) == 1 and "__main__:local" in refused[0]

    about = {"title": "a launch", "lines": {}}
    write_repro(str(folder / "repro"), Small(program, program, 0, 0), about, proofs=0)
    paths = os.pathsep.join([os.environ["PYTHONPATH"], os.path.dirname(os.path.abspath(__file__))])
    ran = subprocess.run(
        [sys.executable, "repro.py"],
        cwd=folder / "repro",
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    yield "the script launches it", "equal to the last bit" in ran.stdout
    yield "the launchers are as before", type(scaled_sum).run.__module__.startswith("triton.runtime.")


if __name__ == "__main__":
    print(json.dumps({name: bool(value) for name, value in facts(Path(sys.argv[1]))}))
