"""Caches of code made at run time: which of their files are in use here, and how old they are."""

from __future__ import annotations

import getpass
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

MOST = 2000


def cache_folders(environments: Iterable[Mapping[str, str]]) -> list[tuple[str, str]]:
    """Caches and their folders, as the libraries themselves would choose them.

    Under each of several environments: an engine sets such variables in its own process, after a library has read them.
    """
    return sorted({pair for environment in environments for pair in _folders(environment).items()})


def _folders(environment: Mapping[str, str]) -> dict[str, str]:
    home = environment.get("HOME", os.path.expanduser("~"))
    shared = environment.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    vllm = environment.get("VLLM_CACHE_ROOT") or os.path.join(shared, "vllm")
    flashinfer = environment.get("FLASHINFER_WORKSPACE_BASE") or home
    inductor = environment.get("TORCHINDUCTOR_CACHE_DIR") or os.path.join(
        tempfile.gettempdir(), f"torchinductor_{_user()}"
    )
    return {
        "triton": environment.get("TRITON_CACHE_DIR") or os.path.join(home, ".triton", "cache"),
        "inductor": inductor,
        "vllm_compile": os.path.join(vllm, "torch_compile_cache"),
        "deep_gemm": environment.get("DG_JIT_CACHE_DIR") or os.path.join(home, ".deep_gemm"),
        "flashinfer": os.path.join(flashinfer, ".cache", "flashinfer"),
        "torch_extensions": environment.get("TORCH_EXTENSIONS_DIR") or os.path.join(shared, "torch_extensions"),
    }


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())


def caches_in_use(
    folders: Iterable[tuple[str, str]], mapped: Iterable[Mapping[str, Any]], started_at: float | None
) -> list[dict[str, Any]]:
    """Files of the caches that this process has loaded, or read since it started where the disk keeps access times.

    `made_at`: when it was written; one that is older than the process came from the cache.
    """
    loaded = {entry["path"] for entry in mapped} | set(_module_files())
    # Once for each file: to look up thousands of them again for every folder would take longer than all else here.
    real = {path: os.path.realpath(path) for path in loaded}
    found = []
    known: set[str] = set()
    for cache, folder in folders:
        root = os.path.realpath(folder) + os.sep
        for path in sorted(p for p in loaded - known if real[p].startswith(root))[:MOST]:
            known.add(path)
            made = _made_at(path)
            if made is not None:
                old = started_at is not None and made < started_at
                found.append({"cache": cache, "file": path, "made_at": made, "from_cache": old})
    return found


def _module_files() -> Iterator[str]:
    for module in list(sys.modules.values()):
        path = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(path, str):
            yield path


def _made_at(path: str) -> float | None:
    try:
        return Path(path).stat().st_mtime
    except OSError:
        return None
