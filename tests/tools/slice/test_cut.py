"""The cut writes the whole slice or nothing, moves only what it keeps, and leaves the checkpoint alone."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from checkpoints import names, write
from slicing import slice_of

from bitgate.tools.errors import RequestError
from bitgate.tools.slice import copying
from bitgate.tools.slice import cut as cutting
from bitgate.tools.slice.checkpoint import SLICE_FILE, open_checkpoint
from bitgate.tools.slice.cut import PARTIAL, remove_abandoned
from bitgate.tools.slice.cutter import Order
from bitgate.tools.slice.header import TensorEntry
from bitgate.tools.slice.layout import Piece
from bitgate.tools.slice.refusal import Refusal


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_kept_layers_are_renumbered_and_everything_around_them_stays(tmp_path: Path) -> None:
    item = slice_of(write(tmp_path / "model"), tmp_path / "out", layers=[2, 4])
    assert sorted(item.layout.mapping.values()) == sorted(names(2))
    assert item.layout.mapping["model.layers.4.mlp.down_proj.weight"] == "model.layers.1.mlp.down_proj.weight"
    assert (item.plan.contiguous, item.plan.by_user, item.plan.injections) == (False, True, (0, 1))


def test_tokenizer_and_remote_code_come_along_and_other_weights_do_not(tmp_path: Path) -> None:
    item = slice_of(write(tmp_path / "model"), tmp_path / "out", shard_bytes=300)
    found = set(os.listdir(item.result.path))
    assert {"tokenizer.json", "modeling_mine.py", "config.json", SLICE_FILE} <= found
    assert "pytorch_model.bin" not in found


def test_a_slice_can_be_sliced_and_tells_its_own_origin(tmp_path: Path) -> None:
    first = slice_of(write(tmp_path / "model"), tmp_path / "first", layers=[1, 3, 5])
    second = slice_of(first.result.path, tmp_path / "second", layers=[0, 2])
    assert len(second.result.files) == len(set(second.result.files)) and second.result.different == ()
    assert json.loads((second.result.path / SLICE_FILE).read_text(encoding="utf-8")) == {"layers": [0, 2]}
    deep = second.checkpoint.tensors["model.layers.2.mlp.down_proj.weight"]
    assert first.layout.mapping["model.layers.5.mlp.down_proj.weight"] == deep.name


def test_the_index_says_what_is_in_the_slice(tmp_path: Path) -> None:
    item = slice_of(write(tmp_path / "model"), tmp_path / "out", shard_bytes=300)
    index = json.loads((item.result.path / "model.safetensors.index.json").read_text(encoding="utf-8"))
    assert index["metadata"] == {"total_size": item.layout.size}
    assert set(index["weight_map"]) == set(names(2))
    assert set(index["weight_map"].values()) == {p.name for p in item.result.path.glob("*.safetensors")}


def test_the_checkpoint_is_not_touched(tmp_path: Path) -> None:
    root = write(tmp_path / "model")
    before = contents(root)
    slice_of(root, tmp_path / "out")
    assert contents(root) == before


@pytest.mark.parametrize("where", ["taken", "model/inside", "model"])
def test_a_folder_that_is_taken_or_in_the_checkpoint_is_refused(tmp_path: Path, where: str) -> None:
    root = write(tmp_path / "model")
    (tmp_path / "taken").symlink_to("nowhere")
    before = contents(root)
    with pytest.raises(RequestError, match="name"):
        slice_of(root, tmp_path / where)
    assert contents(root) == before


def test_a_disk_without_room_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs(tmp_path)
    full = os.statvfs_result((*real[:3], 0, 0, *real[5:]))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    with pytest.raises(Refusal) as caught:
        slice_of(write(tmp_path / "model"), tmp_path / "slices" / "out")
    assert (caught.value.code, os.listdir(tmp_path / "slices")) == ("slice_no_room", [])


def test_a_disk_that_fills_up_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "copy_file_range", full)
    with pytest.raises(Refusal) as caught:
        slice_of(write(tmp_path / "model"), tmp_path / "slices" / "out")
    assert (caught.value.code, os.listdir(tmp_path / "slices")) == ("slice_no_room", [])


@pytest.mark.parametrize("code", sorted(copying.UNSUPPORTED))
def test_without_copy_file_range_the_same_bytes_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    root = write(tmp_path / "model")
    first = slice_of(root, tmp_path / "kernel")

    def unsupported(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "copy_file_range", unsupported)
    second = slice_of(root, tmp_path / "copied")
    assert (first.result.in_kernel, second.result.in_kernel) == (True, False)
    assert contents(first.result.path) == contents(second.result.path)


def test_a_copy_that_moves_fewer_bytes_than_asked_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, reads = os.copy_file_range, os.preadv
    monkeypatch.setattr(os, "copy_file_range", lambda a, b, count, *rest: real(a, b, min(count, 5), *rest))
    monkeypatch.setattr(os, "preadv", lambda fd, views, offset: reads(fd, [views[0][:7]], offset))
    assert slice_of(write(tmp_path / "model"), tmp_path / "out").result.different == ()


def test_a_wrong_byte_in_the_copy_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lying(copying.Mover):
        def move(self, piece: Piece, source: int, target: int, at: int) -> str:
            digest = super().move(piece, source, target, at)
            if piece.name == "lm_head.weight":
                os.pwrite(target, b"\0" if os.pread(target, 1, at) != b"\0" else b"\1", at)
            return digest

    monkeypatch.setattr(cutting, "Mover", Lying)
    result = slice_of(write(tmp_path / "model"), tmp_path / "out").result
    assert [item.name for item in result.different] == ["lm_head.weight"]


def test_an_error_while_copying_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: copying.Mover, *_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(copying.Mover, "digest", interrupted)
    with pytest.raises(KeyboardInterrupt):
        slice_of(write(tmp_path / "model"), tmp_path / "slices" / "out")
    assert os.listdir(tmp_path / "slices") == []


def test_what_a_killed_cut_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    abandoned = tmp_path / f"{PARTIAL}old-1-aa"
    abandoned.mkdir()
    (abandoned / "model.safetensors").write_bytes(b"half")
    slice_of(write(tmp_path / "model"), tmp_path / "out")
    assert not abandoned.exists()


def test_what_only_looks_like_an_abandoned_cut_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / f"{PARTIAL}link").symlink_to(tmp_path / "outside")
    (tmp_path / f"{PARTIAL}file").write_text("x", encoding="utf-8")
    slice_of(write(tmp_path / "model"), tmp_path / "out")
    assert (tmp_path / "outside").is_dir() and (tmp_path / f"{PARTIAL}file").is_file()


def test_a_folder_that_another_cut_removes_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, removed = os.open, list[Path]()

    def racing(path: Any, *rest: Any, **options: Any) -> int:
        if PARTIAL in str(path) and not removed and Path(path).is_dir():
            removed.append(Path(path))
            Path(path).rmdir()
        return real(path, *rest, **options)

    monkeypatch.setattr(os, "open", racing)
    result = slice_of(write(tmp_path / "model"), tmp_path / "slices" / "out").result
    assert removed and result.different == () and os.listdir(tmp_path / "slices") == ["out"]


def test_a_slice_that_appears_while_another_is_renamed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, out = os.rename, tmp_path / "slices" / "out"

    def racing(source: Any, target: Any) -> None:
        out.mkdir()
        (out / "config.json").write_text("first", encoding="utf-8")
        real(source, target)

    monkeypatch.setattr(os, "rename", racing)
    with pytest.raises(RequestError, match="appeared while"):
        slice_of(write(tmp_path / "model"), out)
    assert contents(out) == {"config.json": b"first"} and os.listdir(out.parent) == ["out"]


def test_a_target_that_cannot_be_written_is_said_by_name(tmp_path: Path) -> None:
    (tmp_path / "slices").write_text("a file", encoding="utf-8")
    order = Order(
        str(write(tmp_path / "model")), str(tmp_path / "slices/out"), [0], True, {}, str(tmp_path / "result.json")
    )
    (tmp_path / "order.json").write_text(json.dumps(asdict(order)), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "bitgate.tools.slice.cutter", str(tmp_path / "order.json")], check=True)
    answer = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert "slices" in answer["failed"]


def test_a_cut_that_still_runs_is_not_removed(tmp_path: Path) -> None:
    script = (
        "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX);"
        "print('held', flush=True); input()"
    )
    running = tmp_path / f"{PARTIAL}other-1-aa"
    running.mkdir()
    command = [sys.executable, "-c", script, str(running)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        remove_abandoned(tmp_path)
        assert running.exists()
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_cutter_that_is_told_to_end_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    tensors = {name: bytes(8 << 20) for name in names()}
    root = write(tmp_path / "model", tensors)
    slices = tmp_path / "slices"
    order = Order(str(root), str(slices / "out"), [0, 1, 2, 3, 4, 5], True, {}, str(tmp_path / "result.json"))
    (tmp_path / "order.json").write_text(json.dumps(asdict(order)), encoding="utf-8")
    command = [sys.executable, "-m", "bitgate.tools.slice.cutter", str(tmp_path / "order.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        process.send_signal(number)
        process.wait(30)
    assert set(first) == {"done", "total", "rate"}
    assert first["done"] == first["total"] or (process.returncode, os.listdir(slices)) == (130, [])


def test_rows_longer_than_the_buffer_are_gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "CHUNK", 8)
    source = tmp_path / "source"
    source.write_bytes(bytes(range(60)))
    entry = TensorEntry("t", source, "U8", (3, 20), 0, 60)
    piece = Piece("t", entry, (3, 12), 3, 20, ((0, 10), (18, 2)))
    target = os.open(tmp_path / "target", os.O_RDWR | os.O_CREAT)
    handle = os.open(source, os.O_RDONLY)
    digest = copying.Mover(lambda _: None).move(piece, handle, target, 0)
    rows = [bytes(range(start, start + 20)) for start in (0, 20, 40)]
    wanted = b"".join(row[0:10] + row[18:20] for row in rows)
    assert os.pread(target, 100, 0) == wanted
    assert digest == copying.Mover(lambda _: None).digest(target, 0, len(wanted))
    os.close(handle)
    os.close(target)


def test_odd_sizes_stay_aligned(tmp_path: Path) -> None:
    item = slice_of(write(tmp_path / "model"), tmp_path / "out")
    for entry in open_checkpoint(item.result.path).tensors.values():
        assert entry.offset % 8 == 0
