"""Who may import whom, read from the import statements of every module."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = {
    "server": {"server", "gates", "tools", "store"},
    "gates": {"gates", "store"},
    "tools": {"tools", "store"},
    "store": {"store"},
}
WORKER = "tools/engines/worker/"
ENGINES = {"torch", "vllm", "transformers", "megatron", "transformer_engine", "deep_gemm", "deep_ep", "flash_mla"}

# Bring their types and the things they are made of: who has the first has the others.
CARRIED = {"mcp_types": "mcp", "pydantic_core": "pydantic"}
OPTIONAL = {"pyarrow"}
RECORDS_RUNS = ("tools/runs/", "tools/slice/run.py")


@cache
def imports(name: str) -> list[str]:
    """Modules that are imported anywhere in the file, in functions too; relative ones keep their dots."""
    found: list[str] = []
    for node in ast.walk(ast.parse((ROOT / name).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append("." * node.level + (node.module or ""))
    return found


def modules(room: str, *, worker: bool = False) -> list[str]:
    found = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / room).rglob("*.py"))]
    return [name for name in found if name.startswith(WORKER) == worker]


def wrong_imports(names: list[str], wrong: Callable[[str], bool]) -> list[str]:
    return [f"{name}: {module}" for name in names for module in imports(name) if wrong(module)]


def room_of(module: str) -> str | None:
    return module.split(".")[1] if module.startswith("bitgate.") else None


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_the_rooms_below_it(room: str) -> None:
    assert len(modules(room)) > 5
    assert wrong_imports(modules(room), lambda module: room_of(module) not in {None, *ROOMS[room]}) == []


@pytest.mark.parametrize("room", ROOMS)
def test_nothing_above_the_worker_imports_an_engine(room: str) -> None:
    assert wrong_imports(modules(room), lambda module: module.partition(".")[0] in ENGINES) == []


def test_the_worker_imports_nothing_of_bitgate_by_its_installed_name() -> None:
    names = modules("tools", worker=True)

    assert len(names) > 20
    assert wrong_imports(names, lambda module: room_of(module) is not None) == []


def test_relative_imports_of_the_worker_stay_in_its_folder() -> None:
    for name in modules("tools", worker=True):
        depth = name.removeprefix(WORKER).count("/") + 1
        assert wrong_imports([name], lambda module, most=depth: module.startswith("." * (most + 1))) == []


def test_tools_touch_the_store_only_to_record_a_run() -> None:
    """Its records are types that everybody shares; whatever reads or writes a ledger is the business of runs."""
    names = [name for name in modules("tools") if not name.startswith(RECORDS_RUNS)]

    assert wrong_imports(names, lambda module: room_of(module) == "store" and module != "bitgate.store.records") == []


def test_every_third_party_import_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {re.split(r"[<>=!~\[; ]", text)[0].replace("-", "_") for text in project["dependencies"]}
    used = {
        CARRIED.get(top, top)
        for room in ROOMS
        for name in modules(room)
        for top in (module.partition(".")[0] for module in imports(name))
        if top not in sys.stdlib_module_names | {"bitgate"} | OPTIONAL
    }

    assert used | {"safetensors"} == declared  # which the worker's files that bitgate itself imports read
