"""What an installed wheel must be able to do; `make wheel` runs it in an environment that has nothing else.

Prints what is missing and exits 1. Every command's help is shown, every guide and page template read, and the worker is
staged as a run would stage it.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from click.testing import CliRunner

from bitgate.server.cli import COMMANDS, cli
from bitgate.server.resources import GUIDES, guide_text
from bitgate.tools.registry import TOOLS
from bitgate.tools.runs.stage import stage_worker


def missing() -> list[str]:
    found = [f"help of {name}" for name in COMMANDS if CliRunner().invoke(cli, [name, "--help"]).exit_code]
    found += [f"guide {name}" for name in GUIDES if not guide_text(name)]
    found += [f"tool {name}" for name in TOOLS if not TOOLS[name].description]
    review = files("bitgate.server.review")
    found += [name for name in ("templates/board.html", "static/style.css") if not review.joinpath(name).is_file()]
    with tempfile.TemporaryDirectory() as stage:
        found += [] if stage_worker(Path(stage)).is_file() else ["the worker's run.py"]
    return found + [name for name in ("torch", "vllm") if name in sys.modules]


if __name__ == "__main__":
    lacking = missing()
    print("missing: " + ", ".join(lacking) if lacking else "the wheel is whole")
    sys.exit(1 if lacking else 0)
