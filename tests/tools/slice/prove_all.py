"""Runs the worker's proofs on many slices in one process of the engine interpreter: `prove_all.py ORDERS RESULTS`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, sys.argv[3])

from bitgate_worker.slicing.engine import proof


def report(name: str, options: dict[str, Any]) -> dict[str, Any]:
    try:
        return proof(name)(options)
    except Exception as error:  # noqa: BLE001 - the test shows it
        return {"mode": "failed", "why": f"{type(error).__name__}: {error}"}


def main() -> None:
    import transformers

    transformers.logging.set_verbosity_error()
    orders = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    results = {
        name: {key: report(key.split(" ")[0], {**options, **changed}) for key, changed in options["proofs"].items()}
        for name, options in orders.items()
    }
    Path(sys.argv[2]).write_text(json.dumps(results, allow_nan=False), encoding="utf-8")


if __name__ == "__main__":
    main()
