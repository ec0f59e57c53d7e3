"""What the kernel knows of this process: environment at its start, mapped files, children; and the machine below it."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

LIMIT = 4 << 20
"""Bytes of an environment or of maps that are read; more is said, not kept."""
_MAPS = re.compile(r"^[0-9a-f]+-[0-9a-f]+ (\S{4}) [0-9a-f]+ \S+ (\d+)\s+(/.*)$")


def starting_environment(path: str = "/proc/self/environ") -> dict[str, str]:
    """The environment as the launcher delivered it, before anything in this process changed it.

    Raises: OSError when there is no /proc.
    """
    with open(path, "rb") as file:
        raw = file.read(LIMIT)
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if item)
    return {os.fsdecode(name): os.fsdecode(value) for name, equals, value in pairs if equals}


def mapped_files(path: str = "/proc/self/maps") -> list[dict[str, Any]]:
    """Files whose code is mapped: `path`, `inode`, and `deleted` when the file was removed or replaced since.

    Raises: OSError when there is no /proc.
    """
    found: dict[str, dict[str, Any]] = {}
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            match = _MAPS.match(line)
            if match is None or "x" not in match[1]:
                continue
            name = match[3].removesuffix(" (deleted)")
            if name.startswith(("/dev/", "/memfd:", "/SYSV")):
                continue
            found[name] = {"path": _printable(name), "inode": int(match[2]), "deleted": name != match[3]}
    return [found[name] for name in sorted(found)]


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def children(pid: int | None = None) -> list[dict[str, Any]]:
    """Processes below this one, each with whether it holds a torch: such a one computes where nobody looks.

    Raises: OSError when the kernel does not list them (no /proc, or one without CONFIG_PROC_CHILDREN).
    """
    found, parents = [], _children_of(pid or os.getpid())
    while parents:
        task = parents.pop()
        found.append({"pid": task, "command": _command(task), "computes": _holds_torch(task)})
        with suppress(OSError):  # it has ended meanwhile
            parents += _children_of(task)
    return found


def _children_of(pid: int) -> list[int]:
    tasks = os.listdir(f"/proc/{pid}/task")
    listed = [found for task in tasks if (found := _children_of_thread(pid, task)) is not None]
    if not listed:
        raise OSError(f"/proc/{pid}/task lists no children")
    return sorted({int(word) for text in listed for word in text.split()})


def _children_of_thread(pid: int, task: str) -> str | None:
    try:
        return Path(f"/proc/{pid}/task/{task}/children").read_text(encoding="ascii")
    except OSError:
        return None


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")[:200]
    except OSError:
        return ""


def _holds_torch(pid: int) -> bool:
    """A process whose maps may not be read may hold one."""
    try:
        text = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except PermissionError:
        return True
    except OSError:
        return False
    return "/libtorch" in text


def place() -> dict[str, Any]:
    """Where this process is: host, boot, pid, folder, interpreter, and when it started."""
    return {
        "host": socket.gethostname(),
        "boot": _line("/proc/sys/kernel/random/boot_id"),
        "pid": os.getpid(),
        "cwd": os.getcwd(),
        "executable": sys.executable,
        "prefix": sys.prefix,
        "base_prefix": sys.base_prefix,
        "path": [entry for entry in sys.path if isinstance(entry, str)],
        "observed_at": time.time(),
        "started_at": _started_at(),
    }


def _started_at() -> float | None:
    """Seconds since the epoch; None where the kernel does not say."""
    try:
        ticks = int(
            Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[19]
        )
        uptime = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
        return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def _line(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def image() -> dict[str, Any]:
    """Whether this is a container, and which image where something readable says so."""
    digest = next(
        (value for name in ("IMAGE_DIGEST", "CONTAINER_IMAGE_DIGEST") if (value := os.environ.get(name))), None
    )
    named = _line("/run/.containerenv") or ""
    found = re.search(r'imageid="?([0-9a-f]{64})', named) or re.search(r"sha256:([0-9a-f]{64})", digest or "")
    inside = bool(named) or os.path.exists("/.dockerenv") or os.path.exists("/.singularity.d") or bool(digest)
    return {"container": inside, "digest": found[1] if found else None}
