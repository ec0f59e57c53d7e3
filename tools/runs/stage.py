"""Puts the worker package into a run's folder, where the side's interpreter starts it by path."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import bitgate.tools.engines.worker as worker

PACKAGE: Final = "bitgate_worker"


def stage_worker(stage: Path) -> Path:
    """Copies the package once a run; returns the path of `run.py`. A second call finds it there."""
    target = stage / PACKAGE
    if not target.exists():
        source = Path(worker.__file__).parent
        partial = stage / f"{PACKAGE}.part"
        shutil.copytree(source, partial, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        partial.rename(target)
    return target / "run.py"
