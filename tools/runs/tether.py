"""`python tether.py PARENT -- COMMAND…`: becomes COMMAND, which the kernel kills when PARENT dies.

Launchers such as torchrun do not ask for that themselves, and the setting survives exec. Doing it between fork and exec
of a process with threads would not be safe, so it is a program of its own. Runs by path with `-I -S`; imports nothing
of ours.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[3:]
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        os._exit(127)


if __name__ == "__main__":
    main()
