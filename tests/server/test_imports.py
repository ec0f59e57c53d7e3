"""What a server must not load to start: torch ever, numerics before they are needed."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ["torch", "numpy", "matplotlib", "safetensors", "sqlite_utils", "transformers", "vllm", "pandas"]


def loaded_after(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, encoding="utf-8", check=True)
    return set(eval(done.stdout.splitlines()[-1]))


def test_building_a_server_loads_nothing_heavy() -> None:
    assert (
        loaded_after(
            "from pathlib import Path\n"
            "from bitgate.server.app import build_server\n"
            "from bitgate.server.session import Session, Workplace\n"
            "build_server(Session(Workplace(Path('.')), 'x'))"
        )
        == set()
    )


def test_nothing_of_ours_above_the_worker_imports_torch() -> None:
    code = """
import importlib, pkgutil, bitgate.server, bitgate.tools, bitgate.gates, bitgate.store
for package in (bitgate.server, bitgate.tools, bitgate.gates, bitgate.store):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if ".worker" not in module.name and not module.name.endswith(("__main__",)):
            importlib.import_module(module.name)
"""
    assert "torch" not in loaded_after(code)
