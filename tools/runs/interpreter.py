"""Asks a side's interpreter who it is, before anything is started with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bitgate.tools.errors import WorkerError
from bitgate.tools.runs.codes import advice

OLDEST: Final = (3, 10)
NEEDED: Final = ("numpy", "safetensors")
_SCRIPT: Final = (
    "import importlib.util as u, json, sys; "
    "print(json.dumps({'bitgate': 1, 'version': sys.version_info[:3], "
    "'lacks': [n for n in sys.argv[1:] if u.find_spec(n) is None]}))"
)


def check_interpreter(
    python: str, env: Mapping[str, str], needed: tuple[str, ...] = NEEDED, timeout_s: float = 60
) -> None:
    """Raises WorkerError `interpreter_not_found`, `interpreter_not_python` or `interpreter_lacks`."""
    found = shutil.which(python, path=env.get("PATH"))
    if found is None:
        what = (
            "is a folder"
            if Path(python).is_dir()
            else "exists but may not be executed"
            if Path(python).exists()
            else "does not exist"
        )
        raise _error("interpreter_not_found", f"the side's interpreter {python} {what}.")
    try:
        answer = subprocess.run(
            [found, "-c", _SCRIPT, *needed],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
        said = json.loads(answer.stdout.splitlines()[-1])
        version, lacks = tuple(said["version"]), list(said["lacks"])
    except (OSError, ValueError, KeyError, IndexError, TypeError, subprocess.TimeoutExpired) as error:
        raise _error(
            "interpreter_not_python", f"{python} does not answer like a Python interpreter ({type(error).__name__})."
        ) from error
    if version < OLDEST:
        raise _error("interpreter_not_python", f"{python} is Python {'.'.join(map(str, version))}.")
    if lacks:
        raise _error("interpreter_lacks", f"{python} cannot import {', '.join(lacks)}.")


def side_environment(python: str | None, own: Mapping[str, str], inherited: Mapping[str, str]) -> dict[str, str]:
    """What every rank gets: the server's environment without its Python, rank and tokens, then the side's own."""
    kept = {name: value for name, value in inherited.items() if not _stays_behind(name)}
    if python is not None and os.sep in python:
        kept["PATH"] = os.pathsep.join(filter(None, [str(Path(python).parent), kept.get("PATH", "")]))
    return kept | dict(own)


_RANK: Final = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}
)


def _stays_behind(name: str) -> bool:
    # The server's venv must not leak into the other interpreter, nor a job that the server itself is a rank of.
    return name in _RANK or name == "VIRTUAL_ENV" or name.startswith(("PYTHON", "BITGATE_", "TORCHELASTIC_"))


def _error(code: str, message: str) -> WorkerError:
    return WorkerError(code, f"{message} {advice(code)}")
