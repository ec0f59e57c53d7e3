"""Run by the engine's interpreter: programs under the environment and the switches they were recorded under.

`settings.py FOLDER` prints facts as JSON; `settings.py FOLDER record` writes the program of this process's environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bitgate.tools.engines.worker.probes.classify import classify
from bitgate.tools.engines.worker.probes.experiments.case import Case
from bitgate.tools.engines.worker.probes.products import order_of
from bitgate.tools.engines.worker.probes.program import Program
from bitgate.tools.engines.worker.probes.repro import shrunk, write_repro
from bitgate.tools.engines.worker.probes.rows import Shared, same_bits
from bitgate.tools.engines.worker.probes.setting import statements
from bitgate.tools.engines.worker.probes.stored import load_program, save_programs
from bitgate.tools.engines.worker.probes.tracer import Tracer

NAME, VALUE = "MKL_CBWR", "COMPATIBLE"
"""MKL's products, looked up once in a process: the same sum on every machine, and another one than the fastest."""
ROWS, WIDTH, OUT = 6, 1000, 64


def given(rows: int, prime: int) -> Tensor:
    return ((torch.arange(rows * WIDTH) * prime) % 10007).to(torch.float32).reshape(rows, WIDTH) / 10007


def recorded() -> Program:
    x, weight = given(ROWS, 7919), given(OUT, 104729)
    tracer = Tracer()
    with torch.no_grad(), tracer:
        tracer.mark((0, "in"), x, x)
        made = torch.mm(x, weight.t())
        tracer.mark((0, "out"), made, made)
    program = tracer.program([(0, "in")], (0, "out"), np.array([[0, n] for n in range(ROWS)]))
    assert program is not None
    return program


def in_environment(folder: Path, value: str | None) -> Program:
    environment = {name: text for name, text in os.environ.items() if name != NAME} | ({NAME: value} if value else {})
    command = [sys.executable, __file__, str(folder), "record"]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return load_program(str(folder))


def poisoned(program: Program) -> Tensor:
    """What a hook changes in place counts for what follows, wherever the program runs."""

    def hook(number: int, op: Any, env: dict[str, Any]) -> None:
        env[op.outs[0]].fill_(7.0)

    found: Tensor = program.run(None, hook)[program.output]
    return found


def interrupted(program: Program) -> bool:
    """A hook that raises ends its own run and no other."""

    def hook(number: int, op: Any, env: dict[str, Any]) -> None:
        raise ValueError("seen enough")

    try:
        program.run(None, hook)
    except ValueError:
        return same_bits(program.result(), program.expected)
    return False


def switches() -> dict[str, Any]:
    program = recorded()
    before = torch.get_num_threads()
    program.notes["setting"]["torch"]["num_threads"] = before + 1
    program.run()
    followed = torch.get_num_threads()
    torch.set_num_threads(before)
    return {
        "followed": followed == before + 1,
        "told": f"torch.set_num_threads({before + 1})" in statements(program.notes),
    }


def main(folder: Path) -> None:
    ours, theirs = in_environment(folder / "a", None), in_environment(folder / "b", VALUE)
    index = torch.arange(ROWS)
    different = ~(ours.expected == theirs.expected).all(dim=1)
    case = Case("o_proj", ours, theirs, Shared(index, index, int(different.nonzero()[0])), False, ("ours", "theirs"))
    report = classify(case)
    orders = [order_of(program, 0) for program in (ours, theirs)]
    about = {"title": "two environments", "lines": {}}
    made = write_repro(str(folder / "repro"), shrunk(case), about, proofs=1)
    other = theirs.run({theirs.inputs["0.in"]: theirs.values[theirs.inputs["0.in"]] * 0})[theirs.output]
    facts = {
        "environments": [ours.notes["setting"]["environment"][NAME], theirs.notes["setting"]["environment"][NAME]],
        "differ": int(different.sum()),
        "replayed": [same_bits(p.result(), p.expected) for p in (ours, theirs)],
        "overridden": bool((other == 0).all()),
        "interrupted": interrupted(theirs),
        "hooked": bool((poisoned(theirs) == 7.0).all()),
        "tried": {item["experiment"]: item["result"] for item in report.experiments},
        "class": report.label,
        "orders": [order and order["order"] for order in orders],
        "repro": made["exit_codes"],
        "switches": switches(),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    if sys.argv[2:] == ["record"]:
        save_programs(sys.argv[1], [recorded()], "")
    else:
        main(Path(sys.argv[1]))
