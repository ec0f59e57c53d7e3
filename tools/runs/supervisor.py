"""`python -m bitgate.tools.runs.supervisor FOLDER PARENT`: runs one tool to its end, and outlives nothing it started.

In a session of its own, the subreaper of whatever its launchers start, bound to PARENT's life. Ends in one transaction.
"""

from __future__ import annotations

import logging
import signal
import sys
import traceback
from pathlib import Path

import anyio

from bitgate.store import Store
from bitgate.store.records import Finding
from bitgate.tools.config.project import Project
from bitgate.tools.engines.worker.files import Reserve
from bitgate.tools.engines.worker.processes import become_subreaper, pause, signal_when_parent_dies
from bitgate.tools.registry import TOOLS
from bitgate.tools.runs.elsewhere import Elsewhere
from bitgate.tools.runs.ending import Ender, Outcome, ended, finished, outcome_of
from bitgate.tools.runs.folder import RunFolder, StartedRun
from bitgate.tools.runs.lease import HeldLease
from bitgate.tools.runs.limits import RunLimits, limits_of
from bitgate.tools.runs.running import SupervisedRun
from bitgate.tools.runs.watch import Signals, Watch

RESERVE_BYTES = 1 << 20
EXIT_NOT_OURS = 3


def main(arguments: list[str]) -> int:
    """Never returns once the run is its own: the Ender leaves the process."""
    folder, parent = RunFolder(Path(arguments[0])), int(arguments[1])
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    signals = Signals()
    become_subreaper()
    signal_when_parent_dies(signal.SIGHUP)
    lease = _take(folder)
    if lease is None:
        sys.stderr.write("the lease is not there or held by another supervisor\n")
        return EXIT_NOT_OURS
    started = folder.started()
    project = Project.find(Path(started.project))
    with Store.open(project.ledger) as store:
        if store.get_run(started.run_id).state != "running":
            return EXIT_NOT_OURS
    limits = limits_of(project)
    elsewhere = Elsewhere()
    ender = Ender(project.ledger, started.run_id, Reserve(folder.reserve, RESERVE_BYTES), elsewhere)
    Watch(folder, lease, signals, parent, limits.run_s, ender.end).start()
    ender.end(_run(folder, started, project, limits, elsewhere))
    return 1


def _take(folder: RunFolder) -> HeldLease | None:
    # Whoever asks whether the run lives holds the lock for a moment.
    for _ in range(20):
        if lease := HeldLease.take(folder.lease):
            return lease
        pause(0.1)
    return None


def _run(folder: RunFolder, started: StartedRun, project: Project, limits: RunLimits, elsewhere: Elsewhere) -> Outcome:
    try:
        tool = TOOLS.find(started.tool)
        request = tool.request.model_validate(started.request)
        with Store.open(project.ledger) as store:
            context = SupervisedRun(started.run_id, folder, project, store.artifacts, limits, elsewhere, started.known)
            finding: Finding = anyio.run(tool.run, context, request)
    except Exception as error:  # noqa: BLE001 - whatever a tool raises is how its run ends
        traceback.print_exc()
        return outcome_of(_first_of(error))
    except BaseException as error:  # noqa: BLE001 - SystemExit of a library must not end a run as finished
        traceback.print_exc()
        return ended("failed", "internal", f"{type(error).__name__}: {error}")
    return finished(finding)


def _first_of(error: Exception) -> Exception:
    """What a task group wrapped: the first error of its first group."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
