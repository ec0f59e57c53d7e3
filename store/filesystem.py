"""Which file systems can hold a ledger: SQLite's WAL needs memory shared by all its users, so none that spans hosts."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from bitgate.store.errors import Unavailable, from_os

# f_type of statfs(2), from Linux' magic.h and the vendors' own headers.
NETWORK_TYPES: dict[int, str] = {
    0x6969: "nfs",
    0x517B: "smb",
    0xFF534D42: "cifs",
    0xFE534D42: "smb2",
    0x01021997: "9p",
    0x00C36400: "ceph",
    0x0BD00BD0: "lustre",
    0x47504653: "gpfs",
    0x5346414F: "afs",
    0x6B414653: "kafs",
    0x73757245: "coda",
    0x564C: "ncp",
    0x19830326: "beegfs",
    0xAAD7AAEA: "panfs",
    0x20030528: "orangefs",
    0x7461636F: "ocfs2",
    0x01161970: "gfs2",
    0x013111A8: "ibrix",
    0xBACBACBC: "vmhgfs",
    0x786F4256: "vboxsf",
    0x7C7C6673: "prl_fs",
}
FUSE_TYPE = 0x65735546
# Of what calls itself FUSE, only these are one host's own; sshfs, glusterfs, s3fs, juicefs, virtiofs, grpcfuse are not.
LOCAL_FUSE = frozenset(
    {"fuseblk", "fuse.fuse-overlayfs", "fuse.mergerfs", "fuse.bindfs", "fuse.gocryptfs", "fuse.encfs"}
)


def network_type(f_type: int, mount_type: str | None) -> str | None:
    """The name of a file system that cannot hold a ledger, or None where it can."""
    if f_type == FUSE_TYPE:
        return None if mount_type in LOCAL_FUSE else mount_type or "fuse"
    return NETWORK_TYPES.get(f_type)


def refuse_network(path: Path) -> None:
    """Raises: Unavailable (`network_filesystem`) when `path`, or the folder it will lie in, is not on a local disk."""
    folder = existing_folder(path)
    f_type = statfs_type(folder)
    name = network_type(f_type, mount_type(folder) if f_type == FUSE_TYPE else None)
    if name is None:
        return
    raise Unavailable(
        "network_filesystem",
        f"{path}: {folder} is on {name}; a ledger must lie on a local disk, because SQLite's write-ahead log is "
        "not safe over a network. Put the project on a local disk, or let other hosts use `bitgate serve --http`",
    )


def existing_folder(path: Path) -> Path:
    real = Path(os.path.realpath(path))
    return next(folder for folder in (real, *real.parents) if folder.exists())


def statfs_type(folder: Path) -> int:
    """`f_type` of statfs(2); 0 on a system whose statfs has none. `os.statvfs` does not report it."""
    if sys.platform != "linux":
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(512)
    if libc.statfs(os.fsencode(folder), buffer) != 0:
        error = ctypes.get_errno()
        raise from_os(OSError(error, os.strerror(error)), folder)
    return ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF


def mount_type(folder: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> str | None:
    """The type that the kernel's mount table names for the mount that holds `folder`, such as `fuse.sshfs`."""
    try:
        lines = mountinfo.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    return next((line.split(" - ", 1)[1].split()[0] for line in lines if line.split()[2] == wanted), None)
