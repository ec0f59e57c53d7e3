"""Sequences, checkpoints and files of the worker package, read fail-closed."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from bitgate.tools.engines.worker.capture import weights_digest
from bitgate.tools.engines.worker.checkpoint import CheckpointError
from bitgate.tools.engines.worker.files import is_disk_full, write_json
from bitgate.tools.engines.worker.job import first_host
from bitgate.tools.engines.worker.sequences import Sequences, read_sequences, write_sequences
from bitgate.tools.engines.worker.weights import check_checkpoint, checkpoint_digest, vocabulary_of


def test_sequences_come_back_as_written(tmp_path: Path) -> None:
    write_sequences(tmp_path / "s", [[1, 2], [3]], [[4], []])
    sequences = read_sequences(tmp_path / "s")
    assert [(sequences.prompt(i), sequences.response(i)) for i in range(2)] == [([1, 2], [4]), ([3], [])]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"offsets": np.array([0, 2, 9])}, "offsets do not cut"),
        ({"offsets": np.array([0, 3, 2])}, "offsets do not cut"),
        ({"response_start": np.array([5, 0])}, "outside its sequence"),
        ({"tokens": np.array([1, -2, 3])}, "negative"),
        ({"tokens": np.array([1, 2, 3], np.int32)}, "int64"),
        ({"more": np.array([1])}, "columns"),
    ],
)
def test_sequences_that_are_none_are_refused(tmp_path: Path, change: dict[str, np.ndarray], words: str) -> None:
    good = {"tokens": np.array([1, 2, 3]), "offsets": np.array([0, 2, 3]), "response_start": np.array([1, 0])}
    save_file({**good, **change}, tmp_path / "s")
    with pytest.raises(ValueError, match=words):
        read_sequences(tmp_path / "s")


@pytest.fixture
def weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        "b": random.standard_normal((3, 4)).astype(np.float32),
        "a": random.integers(0, 9, 5),
        "c": np.zeros((0, 2), np.float16),
    }


def test_a_checkpoint_has_the_digest_of_its_tensors(tmp_path: Path, weights: dict[str, np.ndarray]) -> None:
    save_file(weights, tmp_path / "model.safetensors")
    digest = checkpoint_digest(tmp_path)
    assert digest.root() == weights_digest(weights.items())["digest"]
    assert digest.size == sum(value.nbytes for value in weights.values())


def test_cutting_a_checkpoint_into_files_changes_nothing(tmp_path: Path, weights: dict[str, np.ndarray]) -> None:
    names = {name: f"model-{number}.safetensors" for number, name in enumerate(weights)}
    for name, file in names.items():
        save_file({name: weights[name]}, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}), encoding="utf-8")
    save_file({"left": np.zeros(3)}, tmp_path / "left_over.safetensors")
    assert checkpoint_digest(tmp_path).root() == weights_digest(weights.items())["digest"]


def test_a_truncated_checkpoint_is_refused(tmp_path: Path, weights: dict[str, np.ndarray]) -> None:
    path = tmp_path / "model.safetensors"
    save_file(weights, path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="truncated"):
        checkpoint_digest(tmp_path)


@pytest.mark.parametrize(
    "data", [b"", b"\xff" * 8, b"\x02" + b"\0" * 7 + b"[]", b"\x10" + b"\0" * 7 + b'{"a": {"dty": 1}}']
)
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        checkpoint_digest(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no safetensors file"):
        checkpoint_digest(tmp_path)


@pytest.mark.engine
def test_torch_digests_bf16_and_fp8_like_the_file(tmp_path: Path, engine_python: str) -> None:
    import subprocess

    script = (
        "import sys, torch; sys.path.insert(0, sys.argv[2]); from worker.capture import weights_digest\n"
        "from safetensors.torch import save_file\n"
        "w = {'x': torch.randn(4, 3).bfloat16(), 'y': torch.randn(8).to(torch.float8_e4m3fn), 'z': torch.tensor(2.0)}\n"
        "save_file(w, sys.argv[1]); print(weights_digest(w.items())['digest'])"
    )
    from bitgate.tools.engines import worker

    engines = str(Path(worker.__file__).parents[1])
    done = subprocess.run(
        [engine_python, "-c", script, str(tmp_path / "model.safetensors"), engines],
        capture_output=True, text=True, encoding="utf-8", check=True,
    )  # fmt: skip
    assert done.stdout.strip() == checkpoint_digest(tmp_path).root()


def test_json_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"a": float("nan")})
    assert path.read_text(encoding="utf-8") == '{"a":1}'
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_seen_through_what_wraps_it() -> None:
    try:
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            raise RuntimeError("cannot write") from error
    except RuntimeError as error:
        assert is_disk_full(error)
    assert is_disk_full(Exception("I/O error: No space left on device (os error 28)"))
    assert not is_disk_full(OSError(errno.ENOENT, "gone"))


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu1", "gpu1"),
        ("gpu1,gpu2", "gpu1"),
        ("gpu[003-007,011]", "gpu003"),
        ("cpu1,gpu[1-2]", "cpu1"),
        ("a[7]", "a7"),
    ],
)
def test_the_first_node_of_a_slurm_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


@pytest.mark.engine
@pytest.mark.parametrize("ulps", [1, 64, 4096])
@pytest.mark.parametrize("fill", ["0.0", "-0.0", "1.0", "1e-40"])
def test_the_canary_moves_any_weight_by_its_ulps_and_back(engine_python: str, fill: str, ulps: int) -> None:
    import subprocess

    script = (
        "import sys, torch; sys.path.insert(0, sys.argv[1]); from worker.ulp import add_ulps\n"
        f"w = torch.full((4,), {fill}).bfloat16(); was = w.clone(); canary = add_ulps('w', w, {ulps})\n"
        "print(torch.isfinite(w).all().item(), (w != was).sum().item()); canary.undo()\n"
        "print(torch.equal(w.view(torch.int16), was.view(torch.int16)))"
    )
    from bitgate.tools.engines import worker

    engines = str(Path(worker.__file__).parents[1])
    done = subprocess.run(
        [engine_python, "-c", script, engines], capture_output=True, text=True, encoding="utf-8", check=True
    )
    assert done.stdout.split() == ["True", "1", "True"]


def model_of(folder: Path, **config: object) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"vocab_size": 10, **config}), encoding="utf-8")
    save_file({"w": np.zeros(9, np.float32)}, folder / "a.safetensors")
    return folder


def index_of(folder: Path, text: str) -> None:
    (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda m: (m / "a.safetensors").write_bytes((m / "a.safetensors").read_bytes()[:-4]), "truncated"),
    "empty": (lambda m: (m / "a.safetensors").write_bytes(b""), "too few"),
    "missing shard": (lambda m: index_of(m, '{"weight_map": {"w": "b.safetensors"}}'), r"b\.safetensors: No such file"),
    "index is a list": (lambda m: index_of(m, "[]"), r"index\.json: cannot be read"),
    "index is cut": (lambda m: index_of(m, '{"weight_map'), r"index\.json: cannot be read"),
    "offsets of text": (
        lambda m: (m / "a.safetensors").write_bytes(
            (len(head := b'{"w":{"dtype":"F32","shape":[1],"data_offsets":["0","4"]}}')).to_bytes(8, "little") + head
        ),
        "no usable dtype, shape and offsets",
    ),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_checkpoint_is_named_before_an_engine_loads_it(tmp_path: Path, how: str) -> None:
    model = model_of(tmp_path / "m")
    check_checkpoint(model)
    damage, words = DAMAGE[how]
    damage(model)
    with pytest.raises(CheckpointError, match=words):
        check_checkpoint(model)


@pytest.mark.parametrize(
    ("config", "size"),
    [({}, 10), ({"vocab_size": None, "text_config": {"vocab_size": 7}}, 7), ({"vocab_size": "x"}, None)],
)
def test_the_vocabulary_is_what_the_configuration_states(
    tmp_path: Path, config: dict[str, object], size: object
) -> None:
    assert vocabulary_of(model_of(tmp_path / "m", **config)) == size


def test_a_token_outside_the_vocabulary_is_found_with_its_sequence() -> None:
    sequences = Sequences.of([([1, 2], [3]), ([4], []), ([], [5, 9, 8])])
    assert sequences.first_token_from(10) is None
    assert sequences.first_token_from(9) == (2, 9)
    assert sequences.first_token_from(4) == (1, 4)
