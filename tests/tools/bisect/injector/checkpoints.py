"""Run by the engine's interpreter: writes the two seeded checkpoints of the lab, `dense` and `sparse`, to a folder.

Two layers: the last one and one before it. Four experts a token: of two, the sum has one order only.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "tools" / "engines" / "worker"))

from tiny_model import TinyModel, write_tiny_model

MODELS = {
    "dense": TinyModel(family="qwen3", layers=2),
    "sparse": TinyModel(family="qwen3_moe", layers=2, experts_per_token=4),
}


def main() -> None:
    for name, model in MODELS.items():
        write_tiny_model(Path(sys.argv[1]) / name, model)


if __name__ == "__main__":
    main()
