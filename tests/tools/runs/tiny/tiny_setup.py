"""Teaches a process the tiny tool, and its runs the tiny engine, without a hook in bitgate itself."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent


def install() -> Callable[[], None]:
    """Returns the way back, so that tests elsewhere see bitgate as it is."""
    from bitgate.tools.registry import TOOLS
    from bitgate.tools.runs import control

    if str(HERE) not in sys.path:
        sys.path.insert(0, str(HERE))
    TOOLS.add("tiny", "tiny_tool:TOOL")
    own = control.supervisor_command
    control.supervisor_command = lambda folder: [sys.executable, str(HERE / "tiny_supervisor.py"), *own(folder)[-2:]]

    def undo() -> None:
        control.supervisor_command = own
        TOOLS._table.pop("tiny")

    return undo


def stage_with_tiny(stage: Path) -> Path:
    from bitgate.tools.runs.stage import stage_worker

    script = stage_worker(stage)
    package = script.parent
    (package / "tiny").mkdir(exist_ok=True)
    (package / "tiny" / "__init__.py").touch()
    shutil.copy(HERE / "tiny_engine.py", package / "tiny" / "tiny_engine.py")
    table = package / "table.py"
    if "tiny" not in table.read_text(encoding="utf-8"):
        with table.open("a", encoding="utf-8") as file:
            file.write('\nENGINES["tiny"] = "tiny.tiny_engine"\n')
    return script
