from __future__ import annotations

from pathlib import Path

import pytest

from bitgate.store import Store, Unavailable
from bitgate.store import filesystem as fs

EXT4, TMPFS, OVERLAY, XFS, BTRFS, ZFS = 0xEF53, 0x01021994, 0x794C7630, 0x58465342, 0x9123683E, 0x2FC12FC1


@pytest.mark.parametrize("f_type", sorted(fs.NETWORK_TYPES))
def test_a_network_file_system_is_refused_before_anything_is_made(
    path: Path, monkeypatch: pytest.MonkeyPatch, f_type: int
) -> None:
    monkeypatch.setattr(fs, "statfs_type", lambda folder: f_type)
    with pytest.raises(Unavailable, match=f"is on {fs.NETWORK_TYPES[f_type]}; .*local disk") as caught:
        Store.open(path)
    assert caught.value.code == "network_filesystem"
    assert not path.parent.exists()


@pytest.mark.parametrize("f_type", [EXT4, TMPFS, OVERLAY, XFS, BTRFS, ZFS, 0])
def test_a_local_file_system_is_accepted(path: Path, monkeypatch: pytest.MonkeyPatch, f_type: int) -> None:
    monkeypatch.setattr(fs, "statfs_type", lambda folder: f_type)
    Store.open(path).close()


@pytest.mark.parametrize("name", ["fuse.sshfs", "fuse.s3fs", "fuse.glusterfs", "virtiofs", "fuse.grpcfuse", None])
def test_fuse_is_refused_unless_it_is_known_to_be_local(
    path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    monkeypatch.setattr(fs, "statfs_type", lambda folder: fs.FUSE_TYPE)
    monkeypatch.setattr(fs, "mount_type", lambda folder: name)
    with pytest.raises(Unavailable, match=f"is on {name or 'fuse'};"):
        Store.open(path)


@pytest.mark.parametrize("name", sorted(fs.LOCAL_FUSE))
def test_local_fuse_is_accepted(name: str) -> None:
    assert fs.network_type(fs.FUSE_TYPE, name) is None


def test_the_folder_that_is_asked_about_is_the_one_behind_the_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert fs.existing_folder(tmp_path / "link" / "not" / "yet" / "ledger.db") == tmp_path / "real"


def test_the_kernel_names_this_file_system(tmp_path: Path) -> None:
    assert fs.statfs_type(Path("/proc")) == 0x9FA0
    assert fs.mount_type(Path("/proc")) == "proc"
    assert fs.network_type(fs.statfs_type(tmp_path), fs.mount_type(tmp_path)) is None


def test_without_a_mount_table_the_type_is_unknown(tmp_path: Path) -> None:
    assert fs.mount_type(tmp_path, mountinfo=tmp_path / "missing") is None
