"""A step that waits for more steps: the engine stays warm between the passes of one localisation.

The supervisor writes `<folder>/<n>.json` with steps, or with `"end"`; each rank answers `<n>.rank00000.json`. When the
supervisor is gone, so is the lease, and the guard ends this process.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ..files import write_json

WAIT_S = 0.05


def follow(folder: str, rank: int, run: Callable[[Mapping[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Runs what comes until the end; returns how many rounds there were."""
    number, idle = 0, threading.Event()
    while True:
        path = os.path.join(folder, f"{number}.json")
        while not os.path.exists(path):
            idle.wait(WAIT_S)
        with open(path, encoding="utf-8") as file:
            order = json.load(file)
        if order.get("end"):
            return {"rounds": number}
        done = {step["name"]: run(step) for step in order["steps"]}
        write_json(os.path.join(folder, f"{number}.rank{rank:05d}.json"), {"steps": done})
        number += 1
