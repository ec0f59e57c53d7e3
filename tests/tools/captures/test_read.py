"""Reading a capture is fail-closed: each defect has its own reason, and nothing half-read is compared."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from bitgate.tools.captures import CaptureError, open_capture, open_captures
from bitgate.tools.captures.rows import DTYPES
from bitgate.tools.engines.worker import capture as writer
from bitgate.tools.engines.worker.capture import CaptureWriter

WEIGHTS = {"digest": "ab" * 32}
Edit = Callable[[dict[str, Any]], None]


def rows(count: int = 40) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        "sequence": np.arange(count) // 10,
        "position": np.arange(count) % 10,
        "token_id": rng.integers(0, 99, count),
        "mask": np.ones(count, np.uint8),
        "logprob": -rng.exponential(1.0, count).astype(np.float32),
    }


def write(folder: Path, columns: dict[str, np.ndarray] | None = None, **arguments: Any) -> Path:
    with CaptureWriter(folder, **{"engine": "t", "role": "rollout", "weights": WEIGHTS, **arguments}) as capture:
        capture.add_columns(columns or rows())
        capture.computed(kind="forward", passes=1)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "capture")


def edit(folder: Path, change: Edit) -> None:
    value = json.loads((folder / "capture.json").read_text(encoding="utf-8"))
    change(value)
    (folder / "capture.json").write_text(json.dumps(value, allow_nan=False), encoding="utf-8")


def replace_rows(folder: Path, columns: dict[str, np.ndarray]) -> None:
    save_file({name: np.ascontiguousarray(values) for name, values in columns.items()}, folder / "rows.safetensors")


def refused(folder: Path | list[Path]) -> tuple[str, str]:
    with pytest.raises(CaptureError) as error:
        open_capture(folder)
    return error.value.code, str(error.value)


def test_a_sound_capture_opens(folder: Path) -> None:
    capture = open_capture(folder)
    assert capture.name == "rollout"
    assert capture.coverage() == {"shards": 1, "rows": 40, "masked": 40, "sequences": 4}
    assert capture.meta.computation is not None and capture.meta.computation.passes == 1


def test_the_writer_and_the_reader_know_the_same_columns() -> None:
    assert {name: dtype.name for name, dtype in DTYPES.items()} == writer.COLUMNS


def test_a_missing_folder_file_or_meta_is_named(tmp_path: Path, folder: Path) -> None:
    assert refused(tmp_path / "nowhere") == ("capture_missing", f"{tmp_path / 'nowhere'} is not a folder")
    (folder / "rows.safetensors").unlink()
    assert refused(folder)[0] == "capture_missing"
    (folder / "capture.json").unlink()
    assert refused(folder)[0] == "capture_missing"


@pytest.mark.parametrize("kind", ["folder", "fifo"])
def test_what_is_not_a_regular_file_is_refused_without_waiting(folder: Path, kind: str) -> None:
    (folder / "rows.safetensors").unlink()
    if kind == "folder":
        (folder / "rows.safetensors").mkdir()
    else:
        os.mkfifo(folder / "rows.safetensors")
    assert refused(folder)[0] == "capture_missing"


@pytest.mark.parametrize("size", [0, 7, 8, 100, -1, -200])
def test_a_file_cut_anywhere_is_truncated(folder: Path, size: int) -> None:
    path = folder / "rows.safetensors"
    os.truncate(path, size if size >= 0 else path.stat().st_size + size)
    assert refused(folder)[0] == "capture_truncated"


def test_bytes_after_the_last_tensor_are_refused(folder: Path) -> None:
    with (folder / "rows.safetensors").open("ab") as file:
        file.write(b"x")
    assert refused(folder)[0] == "capture_unreadable"


@pytest.mark.parametrize(
    "header",
    [
        b"not json",
        b"[]",
        b'{"a": 1}',
        b'{"a": {"dtype": "F32", "shape": [1]}}',
        b'{"a": {"dtype": "F33", "shape": [1], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [true], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "b": {"dtype": "F32", "shape": [1], '
        b'"data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}, "a": {"dtype": "F32", "shape": [1], '
        b'"data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, NaN]}}',
        b"\xff\xfe",
    ],
)
def test_a_header_that_does_not_add_up_is_unreadable(folder: Path, header: bytes) -> None:
    data = len(header).to_bytes(8, "little") + header + b"\0" * 4
    (folder / "rows.safetensors").write_bytes(data)
    assert refused(folder)[0] == "capture_unreadable"


def test_a_header_that_claims_to_be_huge_is_refused(folder: Path) -> None:
    (folder / "rows.safetensors").write_bytes((1 << 60).to_bytes(8, "little") + b"{}")
    assert refused(folder)[0] == "capture_unreadable"


def test_a_future_version_says_which_one_is_read(folder: Path) -> None:
    edit(folder, lambda meta: meta.update(version=2, something_new=True))
    assert refused(folder) == (
        "capture_version",
        f"{folder / 'capture.json'}: format version 2; this bitgate reads version 1",
    )


@pytest.mark.parametrize("version", [0, -1, "1", True, None, 1.5])
def test_a_version_that_is_no_version_is_refused(folder: Path, version: object) -> None:
    edit(folder, lambda meta: meta.update(version=version))
    assert refused(folder)[0] == "capture_json"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "Expecting value"),
        (b"\xff", "not UTF-8"),
        (b"[]", "allowed: an object"),
        (b"{} x", "Extra data"),
        (b'{"format": "bitgate.capture", "format": "bitgate.capture"}', "appears twice"),
        (b'{"a": NaN}', "NaN is not a number in JSON"),
        (b'{"a": -Infinity}', "-Infinity is not a number"),
        (b'{"a": 1e999}', "too large for a number"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deep"),
        (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "nested too deep"),
        (b"1" * 10_000, "integer string conversion"),
        (b" " * (5 << 20), "bytes; at most"),
        (b'{"format": "something.else", "version": 1}', "format is 'something.else'"),
    ],
)
def test_hostile_json_is_refused(folder: Path, text: bytes, says: str) -> None:
    (folder / "capture.json").write_bytes(text)
    code, detail = refused(folder)
    assert code == "capture_json"
    assert says in detail


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda meta: meta.update(extra=1), "extra"),
        (lambda meta: meta.pop("weights"), "weights"),
        (lambda meta: meta.pop("sampling"), "sampling"),
        (lambda meta: meta["weights"].update(digest="short"), "weights.digest"),
        (lambda meta: meta["weights"].update(version=-1), "weights.version"),
        (lambda meta: meta["rows"].update(count="40"), "rows.count"),
        (lambda meta: meta["computation"].update(id="x"), "computation.id"),
        (lambda meta: meta["computation"].update(mode="dream"), "computation.mode"),
        (lambda meta: meta.update(engine="\udc80"), "engine"),
        (lambda meta: meta["shard"].update(count=10**9), "shard.count"),
    ],
)
def test_a_wrong_field_is_named(folder: Path, change: Edit, field: str) -> None:
    edit(folder, change)
    code, detail = refused(folder)
    assert code == "capture_json"
    assert field in detail or field == "engine"


@pytest.mark.parametrize("name", ["../rows.safetensors", "/etc/hostname", "a/b", "..", ".", "", "x\0y"])
def test_a_file_outside_the_folder_is_refused(folder: Path, name: str) -> None:
    edit(folder, lambda meta: meta["rows"].update(file=name))
    assert refused(folder)[0] in ("capture_path", "capture_json")


@pytest.mark.parametrize("file", ["rows.safetensors", "capture.json"])
def test_a_link_that_leads_out_of_the_folder_is_refused(folder: Path, tmp_path: Path, file: str) -> None:
    (folder / file).rename(tmp_path / file)
    (folder / file).symlink_to(tmp_path / file)
    assert refused(folder)[0] == "capture_path"


@pytest.mark.parametrize("column", ["sequence", "position", "token_id", "mask", "logprob"])
def test_a_missing_column_is_named(folder: Path, column: str) -> None:
    replace_rows(folder, {name: values for name, values in rows().items() if name != column})
    code, detail = refused(folder)
    assert code == "columns_disagree" and f"missing ['{column}']" in detail


def test_an_unknown_column_is_named(folder: Path) -> None:
    replace_rows(folder, {**rows(), "entropy": np.zeros(40, np.float32)})
    assert refused(folder)[0] == "columns_disagree"


@pytest.mark.parametrize(
    ("column", "dtype"),
    [("sequence", np.int32), ("token_id", np.uint64), ("mask", np.bool_), ("logprob", np.float64), ("mask", np.int8)],
)
def test_a_wrong_dtype_is_named(folder: Path, column: str, dtype: type) -> None:
    replace_rows(folder, {**rows(), column: rows()[column].astype(dtype)})
    code, detail = refused(folder)
    assert code == "dtype_wrong" and f"column {column} is" in detail


def test_logprobs_stored_as_fp16_are_too_coarse(folder: Path) -> None:
    replace_rows(folder, {**rows(), "logprob": rows()["logprob"].astype(np.float16)})
    assert refused(folder)[0] == "logprob_precision"


def test_columns_of_different_lengths_or_shapes_are_refused(folder: Path) -> None:
    replace_rows(folder, {**rows(), "token_id": rows()["token_id"][:-1]})
    assert refused(folder)[0] == "columns_disagree"
    replace_rows(folder, {name: values.reshape(4, 10) for name, values in rows().items()})
    assert refused(folder)[0] == "columns_disagree"


def test_another_number_of_rows_than_stated_is_refused(folder: Path) -> None:
    replace_rows(folder, rows(30))
    assert refused(folder)[0] == "counts_disagree"


def test_an_empty_mask_and_no_rows_are_refused(tmp_path: Path) -> None:
    empty = write(tmp_path / "empty", {**rows(), "mask": np.zeros(40, np.uint8)})
    assert refused(empty) == ("empty_mask", "rollout: no row is under the mask")
    assert refused(write(tmp_path / "none", rows(0))) == ("empty_mask", "rollout has no rows")


def shard(folder: Path, rank: int, world: int, **arguments: Any) -> None:
    part = {name: values[rank * 10 : rank * 10 + 10] for name, values in rows().items()}
    write(folder, part, rank=rank, world_size=world, **arguments)


def test_shards_are_merged_and_counted(tmp_path: Path) -> None:
    for rank in (2, 0, 3, 1):
        shard(tmp_path / "c", rank, 4)
    capture = open_capture(tmp_path / "c")
    assert capture.coverage() == {"shards": 4, "rows": 40, "masked": 40, "sequences": 4}
    assert [meta.shard.index for meta in capture.metas] == [0, 1, 2, 3]


@pytest.mark.parametrize("missing", [0, 1, 3])
def test_a_missing_rank_is_named(tmp_path: Path, missing: int) -> None:
    for rank in {0, 1, 2, 3} - {missing}:
        shard(tmp_path / "c", rank, 4)
    code, detail = refused(tmp_path / "c")
    assert code == "rank_missing" and f"missing {missing}" in detail


def test_a_rank_that_appears_twice_is_refused(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        for rank in (0, 1):
            shard(tmp_path / folder, rank, 2)
    code, detail = refused([tmp_path / "x", tmp_path / "y" / "rank00001"])
    assert code == "rank_missing" and "twice [1]" in detail


@pytest.mark.parametrize(
    "other", [{"weights": {"digest": "cd" * 32}}, {"role": "recompute"}, {"sampling": {"top_p": 1.0}}]
)
def test_shards_of_different_captures_are_refused(tmp_path: Path, other: dict[str, Any]) -> None:
    shard(tmp_path / "c", 0, 2)
    shard(tmp_path / "c", 1, 2, **other)
    assert refused(tmp_path / "c")[0] == "rank_missing"


def test_a_rank_without_rows_is_a_shard_too(tmp_path: Path) -> None:
    write(tmp_path / "c", rank=0, world_size=2)
    write(tmp_path / "c", {name: values[:0] for name, values in rows().items()}, rank=1, world_size=2)
    assert open_capture(tmp_path / "c").coverage()["rows"] == 40


def test_a_list_of_whole_rank_folders_is_taken_as_complete(tmp_path: Path) -> None:
    halves = [{name: values[half] for name, values in rows().items()} for half in (slice(0, 20), slice(20, 40))]
    folders = [write(tmp_path / str(rank), half) for rank, half in enumerate(halves)]
    assert open_capture(folders).coverage()["rows"] == 40


def test_several_are_opened_and_each_defect_becomes_a_reason(folder: Path, tmp_path: Path) -> None:
    captures, reasons = open_captures({"rollout": folder, "recompute": tmp_path / "nowhere"})
    assert list(captures) == ["rollout"]
    assert [reason.code for reason in reasons] == ["capture_missing"]


def test_a_file_that_changes_after_it_was_opened_is_noticed(folder: Path, tmp_path: Path) -> None:
    capture = open_capture(folder)
    write(folder, rows())
    with pytest.raises(CaptureError, match="is not the file that was opened before"), capture.rows.open():
        pass
