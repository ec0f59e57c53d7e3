"""The watch of a supervisor whose main thread is deep in C code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

STUCK = """
import ctypes, os, sys
from pathlib import Path
from bitgate.tools.runs import watch
from bitgate.tools.runs.folder import RunFolder
from bitgate.tools.runs.lease import HeldLease

watch.STUCK_S = 1.5
folder = RunFolder(Path(sys.argv[1]))
folder.lease.write_text("0 starting\\n", encoding="ascii")
lease = HeldLease.take(folder.lease)
watch.Watch(folder, lease, watch.Signals(), os.getppid(), 100.0, lambda outcome: os._exit(9)).start()
ctypes.CDLL(None).sleep(3)  # without the interpreter lock: the watch goes on
os.write(1, b"alive\\n")
ctypes.PyDLL(None).sleep(1000)
"""


def test_a_supervisor_that_holds_the_interpreter_lock_ends_itself_and_says_where(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STUCK, str(tmp_path)], capture_output=True, timeout=60, encoding="utf-8", check=False
    )
    assert (done.returncode, done.stdout) == (1, "alive\n")
    assert "Timeout" in done.stderr and "<module>" in done.stderr
