"""A server's stand-in: starts one run, says its id, and waits. `tiny_server.py PROJECT REQUEST_JSON`."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import tiny_setup

tiny_setup.install()

from tiny_tool import TinyRequest  # noqa: E402

from bitgate.tools.config.project import Project  # noqa: E402
from bitgate.tools.runs.control import start_run, wait_run  # noqa: E402


async def main() -> None:
    project = Project.load(Path(sys.argv[1]))
    run = await start_run(project, "tiny", TinyRequest.model_validate_json(sys.argv[2]), actor="tester")
    print(run.id, flush=True)
    run = await wait_run(project, run.id, None)
    print(run.state, flush=True)


anyio.run(main)
