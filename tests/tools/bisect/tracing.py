"""Run by the engine's interpreter: what a tracer does with what cannot be kept, and programs of another machine."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bitgate.tools.engines.worker.probes.gpu import SWITCH, follow_mode, registering
from bitgate.tools.engines.worker.probes.program import Program
from bitgate.tools.engines.worker.probes.repro import Small, write_repro
from bitgate.tools.engines.worker.probes.tracer import Tracer, _defined


def traced(tracer: Tracer, scale: Tensor) -> Program:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), tracer:
        tracer.mark((0, "x"), x, x)
        made = torch.mm(x, scale)
        tracer.mark((0, "out"), made, made)
    program = tracer.program([(0, "x")], (0, "out"), torch.tensor([[0, n] for n in range(4)]).numpy())
    assert program is not None
    return program


def unkeepable(tensor: Tensor) -> Tensor | None:
    if tensor.shape == (8, 8):
        raise RuntimeError("no copy of this")
    return None


def mode_conflict() -> str:
    sys.modules[SWITCH] = types.SimpleNamespace(_batch_invariant_MODE=True)  # type: ignore[assignment]
    try:
        follow_mode({"gpu": ["v1"], "batch_invariant": False})
    except RuntimeError as error:
        return str(error)
    finally:
        del sys.modules[SWITCH]
    return ""


def of_a_gpu(folder: Path) -> dict[str, Any]:
    program = traced(Tracer(), torch.eye(8))
    program.notes["gpu"] = list(program.values)
    made = write_repro(str(folder), Small(program, program, 0, 0), {"title": "t", "lines": {}})
    ran = subprocess.run([sys.executable, "repro.py"], cwd=folder, capture_output=True, text=True, check=False)
    return {"exit": ran.returncode, "said": ran.stderr.strip(), "proved": made["reproduces"]}


def main() -> None:
    tracer = Tracer()
    tracer.substitute = unkeepable
    program = traced(tracer, torch.eye(8))
    filled = _defined([torch.ones(1), None])
    print(
        json.dumps(
            {
                "ran": program.expected.shape == (4, 8),
                "refused": list(program.notes["refused"].values()),
                "filled": [isinstance(item, Tensor) for item in filled],
                "conflict": mode_conflict(),
                "gpu": of_a_gpu(Path(sys.argv[1])),
                "registering": {space: registering(space) for space in ("_C_cache_ops", "_vllm_fa3_C", "aten")},
            }
        )
    )


if __name__ == "__main__":
    main()
