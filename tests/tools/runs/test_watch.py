"""The watch of a supervisor whose main thread is deep in C code; how a guard waits for the dead."""

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


REAPS = """
import os, signal
from bitgate.tools.engines.worker.processes import reap

os.listdir = None  # a guard asks twice a second: nobody reads /proc, long on a large host
assert reap() == {}, "a process without children"
reading, writing = os.pipe()
pids = []
for number in range(3):
    pids.append(os.fork())
    if pids[-1] == 0:
        os.close(writing)
        os.read(reading, 1) if number == 2 else os._exit(number + 7)
        os._exit(0)
for pid in pids[:2]:
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
assert {pid: os.waitstatus_to_exitcode(status) for pid, status in reap().items()} == {pids[0]: 7, pids[1]: 8}
assert reap() == {}, "the third one lives"
os.close(writing)
"""


def test_the_dead_are_waited_for_and_the_living_are_left_alone() -> None:
    done = subprocess.run([sys.executable, "-c", REAPS], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
