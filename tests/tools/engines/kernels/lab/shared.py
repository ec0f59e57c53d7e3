"""The worker's modules under test and models made of them, for the lab's scripts in the engine's interpreter."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORKER = Path(__file__).resolve().parents[5] / "tools/engines/worker"
package = types.ModuleType("bitgate_worker")
package.__path__ = [str(WORKER)]
sys.modules["bitgate_worker"] = package


def ours(name: str) -> Any:
    return importlib.import_module(f"bitgate_worker.{name}")


ours("engines.vllm_environment").prepare_environment()

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

checkpoint, engine_module, model_module = ours("kernels.checkpoint"), ours("kernels.engine"), ours("kernels.model")
stack_module, table, visible = ours("kernels.stack"), ours("kernels.table"), ours("kernels.visible")

OPTIONS = {"enforce_eager": True, "max_model_len": 256, "dtype": "bfloat16", "enable_prefix_caching": False}
GENERATOR = torch.Generator().manual_seed(0)


def stack_of(path: Path, *, batch_invariant: bool = True, **options: Any) -> Any:
    return stack_module.build_stack(str(path), batch_invariant=batch_invariant, engine_options=OPTIONS | options)


def model_of(
    path: Path, *, batch_invariant: bool = True, dtype: str = "bfloat16", rows: Any = None, **options: Any
) -> Any:
    stack = stack_of(path, batch_invariant=batch_invariant, dtype=dtype)
    operators = table.Operators(stack, rows or table.TABLE)
    model = model_module.CausalLM(operators, **options)
    checkpoint.load(model, str(path))
    model.operators = operators
    return model


def sequences() -> list[Tensor]:
    return [
        torch.randint(3, 1024, (length,), generator=torch.Generator().manual_seed(length)) for length in (40, 17, 33)
    ]


def equal(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.detach().view(torch.int32), b.detach().view(torch.int32))


def refusal(action: Callable[[], Any]) -> dict[str, str]:
    try:
        action()
    except ours("engine").EngineError as error:
        return {"code": error.code, "message": str(error)}
    return {"code": "none", "message": ""}
