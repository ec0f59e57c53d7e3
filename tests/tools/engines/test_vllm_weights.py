"""What a model holds against what its checkpoint has, on a module of torch alone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bitgate.tools.engines import worker

pytestmark = pytest.mark.engine

SCRIPT = """
import sys, types, torch
from safetensors.torch import save_file
sys.path.insert(0, sys.argv[1])
from worker.engine import EngineError
from worker.engines.vllm_weights import resident_weights

model = torch.nn.ModuleDict({"a": torch.nn.LayerNorm(3), "b": torch.nn.LayerNorm(3)})
stored = dict(model.state_dict())
for name in sys.argv[3:]:
    gone, _, other = name.partition("=")
    tensor = stored.pop(gone)
    stored |= {other: tensor} if other else {}
save_file(stored, sys.argv[2] + "/model.safetensors")
config = types.SimpleNamespace(parallel_config=types.SimpleNamespace(world_size=1))
llm = types.SimpleNamespace(llm_engine=types.SimpleNamespace(vllm_config=config))
try:
    found = dict(resident_weights(llm, model, sys.argv[2], "cpu", {}))
    print(sorted(name for name, value in found.items() if isinstance(value, str)))
except EngineError as error:
    print(error.code, error.message)
"""


def weights(engine_python: str, folder: Path, *changes: str) -> str:
    engines = str(Path(worker.__file__).parents[1])
    command = [engine_python, "-c", SCRIPT, engines, str(folder), *changes]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=True).stdout.strip()


def test_a_complete_checkpoint_is_read(engine_python: str, tmp_path: Path) -> None:
    assert weights(engine_python, tmp_path) == "[]"


def test_a_tensor_that_the_checkpoint_lacks_is_refused(engine_python: str, tmp_path: Path) -> None:
    said = weights(engine_python, tmp_path, "b.weight")

    assert said.startswith("checkpoint_mismatch")
    assert "no tensor b.weight (1 missing)" in said


def test_names_that_differ_are_unreadable_and_not_refused(engine_python: str, tmp_path: Path) -> None:
    assert weights(engine_python, tmp_path, "b.weight=other.weight") == "['other.weight']"


def test_what_vllm_refuses_is_a_refused_request_whatever_its_type(engine_python: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    script = """
import sys
sys.path.insert(0, sys.argv[1])
from worker.engine import EngineError
from worker.engines.vllm_failures import explained

class VLLMValidationError(Exception): ...

try:
    with explained(sys.argv[2]):
        raise VLLMValidationError("This model's maximum context length is 256 tokens")
except EngineError as error:
    print(error.code, error.message)
"""
    engines = str(Path(worker.__file__).parents[1])
    done = subprocess.run(
        [engine_python, "-c", script, engines, str(tmp_path)], capture_output=True, encoding="utf-8", check=True
    )

    assert done.stdout.startswith("request_refused")
    assert "256 tokens" in done.stdout
