"""Puts the worker package into a run's folder, where the side's interpreter starts it by path."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path
from typing import Final

import bitgate.tools.engines.worker as worker

PACKAGE: Final = "bitgate_worker"


def stage_worker(stage: Path) -> Path:
    """Copies the package once a run; returns the path of `run.py`. Two jobs of a run may ask at the same time."""
    target = stage / PACKAGE
    if not target.exists():
        source = Path(worker.__file__).parent
        partial = stage / f"{PACKAGE}.{secrets.token_hex(4)}.part"
        shutil.copytree(source, partial, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        try:
            partial.rename(target)
        except OSError:
            # The other job was faster; its copy is the same.
            shutil.rmtree(partial)
            if not target.exists():
                raise
    return target / "run.py"
