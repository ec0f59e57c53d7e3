"""The environment that recorded programs need: their process starts under it, since kernels look it up once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def environment_of(folders: Iterable[Path]) -> dict[str, str]:
    """Variables for the process that runs these programs; where two contradict each other, the first one's."""
    wanted: dict[str, str | None] = {}
    for folder in folders:
        for name, value in _recorded(folder).items():
            wanted.setdefault(name, value)
    return {name: value for name, value in wanted.items() if value is not None}


def _recorded(folder: Path) -> Mapping[str, str | None]:
    notes: dict[str, Any] = json.loads((folder / "program0.json").read_text(encoding="utf-8"))["notes"]
    found: Mapping[str, str | None] = notes["setting"]["environment"]
    return found
