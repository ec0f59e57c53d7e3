"""The writer that trainers copy: atomic, strict about what it is given, and a witness of the computation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitgate.tools.captures import open_capture
from bitgate.tools.engines.worker import capture as module
from bitgate.tools.engines.worker.capture import CaptureWriteError, CaptureWriter, weights_digest

WEIGHTS = {"digest": "ab" * 32}


def writer(folder: Path, **arguments: Any) -> CaptureWriter:
    return CaptureWriter(folder, engine="t", role="rollout", weights=WEIGHTS, **arguments)


def test_sequences_are_added_one_by_one(tmp_path: Path) -> None:
    with writer(tmp_path / "c") as capture:
        for sequence in (4, 2):
            capture.add(
                sequence=sequence,
                positions=[5, 6, 7],
                token_ids=np.array([1, 2, 3]),
                logprobs=np.array([-1.5, -0.25, 0.0], np.float32),
                mask=[1, 0, 1],
                phase="decode",
                batch=3,
            )
    opened = open_capture(tmp_path / "c")
    assert opened.coverage() == {"shards": 1, "rows": 6, "masked": 4, "sequences": 2}
    with opened.rows.open() as rows:
        assert rows.view("sequence", 0, 6).tolist() == [4, 4, 4, 2, 2, 2]
        assert rows.view("phase", 0, 6).tolist() == [1] * 6
        assert rows.view("batch", 0, 6).tolist() == [3] * 6


def test_nothing_is_left_when_the_block_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), writer(tmp_path / "c") as capture:
        capture.add(sequence=0, positions=[0], token_ids=[1], logprobs=np.float32([-1]))
        raise RuntimeError
    assert not (tmp_path / "c").exists()


def test_nothing_half_written_is_left_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_rows: object, path: str) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "save_file", full)
    with pytest.raises(OSError, match="No space left"), writer(tmp_path / "c") as capture:
        capture.add(sequence=0, positions=[0], token_ids=[1], logprobs=np.float32([-1]))
    assert list((tmp_path / "c").iterdir()) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"token_ids": [1.5, 2.0]}, "token_id: got dtype float64"),
        ({"token_ids": [1]}, "different lengths"),
        ({"mask": [1, 300]}, "mask: got 1 to 300, which does not fit uint8"),
        ({"logprobs": np.zeros((2, 1), np.float32)}, r"logprob: got shape \(2, 1\)"),
        ({"turn": [0, 2**40]}, "does not fit int32"),
    ],
)
def test_what_cannot_be_a_row_is_named(tmp_path: Path, change: dict[str, object], says: str) -> None:
    good = {"positions": [0, 1], "token_ids": [1, 2], "logprobs": np.float32([-1, -2])}
    with pytest.raises(CaptureWriteError, match=says), writer(tmp_path / "c") as capture:
        capture.add(sequence=0, **{**good, **change})


@pytest.mark.parametrize(
    "given",
    [
        {"temperature": float("nan")},
        {"sampling": {"logit_bias": {5: float("inf")}}},
        {"sampling": {"stop": {1, 2}}},
        {"provenance": {"version": object()}},
    ],
)
def test_what_json_cannot_hold_is_named_and_nothing_is_written(tmp_path: Path, given: dict[str, Any]) -> None:
    name = "logprobs" if "temperature" in given else next(iter(given))
    with (
        pytest.raises(CaptureWriteError, match=f"{name}: got .* JSON cannot hold"),
        writer(tmp_path / "c", **given) as capture,
    ):
        capture.add(sequence=0, positions=[0], token_ids=[1], logprobs=np.float32([-1]))
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(("positions", "says"), [([1, 0], "must grow"), ([1, 1], "must grow")])
def test_rows_out_of_order_are_refused(tmp_path: Path, positions: list[int], says: str) -> None:
    with pytest.raises(CaptureWriteError, match=says), writer(tmp_path / "c") as capture:
        capture.add(sequence=0, positions=positions, token_ids=[1, 2], logprobs=np.float32([-1, -2]))


def test_a_sequence_added_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaptureWriteError, match="not together"), writer(tmp_path / "c") as capture:
        for sequence in (0, 1, 0):
            capture.add(sequence=sequence, positions=[0], token_ids=[1], logprobs=np.float32([-1]))


def test_a_narrow_dtype_is_recorded(tmp_path: Path) -> None:
    with writer(tmp_path / "c") as capture:
        capture.add(sequence=0, positions=[0], token_ids=[1], logprobs=np.float16([-1]))
    assert open_capture(tmp_path / "c").meta.logprobs.dtype == "float16"


def test_a_rank_outside_the_world_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaptureWriteError, match="rank: got 2; allowed: 0 to 1"):
        CaptureWriter(tmp_path, engine="t", role="r", weights=WEIGHTS, rank=2, world_size=2)


def test_the_weights_digest_depends_on_names_shapes_dtypes_and_bytes_but_not_on_order() -> None:
    one, two = ("a", np.arange(6, dtype=np.float32)), ("b", np.ones(2, np.int8))
    digest = weights_digest([one, two], version=3)
    assert digest == weights_digest([two, one], version=3)
    assert digest["version"] == 3 and digest["tensors"] == 2
    others = [
        [("c", one[1]), two],
        [("a", one[1].reshape(2, 3)), two],
        [("a", one[1].view(np.int32)), two],
        [("a", one[1] + 1), two],
        [one],
    ]
    assert len({weights_digest(other)["digest"] for other in others} | {digest["digest"]}) == 6


def test_it_needs_neither_bitgate_nor_torch(tmp_path: Path) -> None:
    copy = tmp_path / "my_trainer" / "capture.py"
    copy.parent.mkdir()
    copy.write_bytes(Path(module.__file__).read_bytes())
    code = (
        "import sys; import capture, numpy as np\n"
        "with capture.CaptureWriter('out', engine='t', role='rollout', weights={'digest': 'ab' * 32}) as w:\n"
        "    w.add(sequence=0, positions=[0], token_ids=[1], logprobs=np.float32([-1]))\n"
        "assert not {'torch', 'bitgate'} & set(sys.modules), sorted(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=copy.parent, check=True)
    assert open_capture(copy.parent / "out").rows.count == 1
    assert json.loads((copy.parent / "out/capture.json").read_text(encoding="utf-8"))["computation"] is None
