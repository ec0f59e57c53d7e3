"""A checkpoint comes from anywhere: each way to be broken is refused with its reason, before anything is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checkpoints import CONFIG, encode, names, with_header, write
from hypothesis import given
from hypothesis import strategies as st

from bitgate.tools.reasons import REASONS
from bitgate.tools.slice import layout
from bitgate.tools.slice.checkpoint import open_checkpoint
from bitgate.tools.slice.family import read_model
from bitgate.tools.slice.finding import read_subject
from bitgate.tools.slice.header import MAX_HEADER, read_header
from bitgate.tools.slice.keys import Selection
from bitgate.tools.slice.layout import lay_out
from bitgate.tools.slice.proof import token_count, vocabulary
from bitgate.tools.slice.refusal import Refusal
from bitgate.tools.slice.report import census_text

INDEX = "model.safetensors.index.json"
FIRST = "model-00001-of-00002.safetensors"
GOOD = '{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'


def refused(root: Path) -> tuple[str, str]:
    with pytest.raises(Refusal) as caught:
        read_model(open_checkpoint(root).config)
    assert caught.value.code in REASONS
    return caught.value.code, caught.value.detail


def edit_index(root: Path, name: str, file: str) -> None:
    index = json.loads((root / INDEX).read_text(encoding="utf-8"))
    index["weight_map"][name] = file
    (root / INDEX).write_text(json.dumps(index), encoding="utf-8")


@pytest.mark.parametrize(
    ("header", "data", "says"),
    [
        ('{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', b"123", "truncated"),
        ('{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', b"12345", "longer"),
        (
            '{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}',
            b"123456",
            "overlaps",
        ),
        (
            '{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[6,10]}}',
            b"1234567890",
            "hole",
        ),
        (
            '{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}',
            b"1234",
            "twice",
        ),
        ('{"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}}', b"1234", "natural numbers in order"),
        ('{"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}}', b"1234", "natural numbers in order"),
        ('{"a":{"dtype":"U8","shape":[true,4],"data_offsets":[0,4]}}', b"1234", "natural numbers in order"),
        ('{"a":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,4]}}', b"1234", "natural numbers"),
        ('{"a":{"dtype":"U8","shape":[5],"data_offsets":[0,4]}}', b"1234", "bits by dtype"),
        ('{"a":{"dtype":"Q8","shape":[4],"data_offsets":[0,4]}}', b"1234", "unknown dtype"),
        ('{"a":{"dtype":"U8","shape":[4]}}', b"1234", "exactly dtype"),
        ('{"__metadata__":[1]}', b"", "not an object"),
        ('{"a\\ud800":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', b"1234", "not Unicode text"),
        (f'{{"a":{{"dtype":"U8","shape":{[1] * 65},"data_offsets":[0,1]}}}}', b"1", "65 dimensions"),
        ("[1]", b"", "not a JSON object"),
        ("{", b"", "not JSON"),
        ("[" * 100_000, b"", "not JSON"),
    ],
)
def test_a_broken_header_is_refused(tmp_path: Path, header: str, data: bytes, says: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(with_header(header.encode(), data))
    with pytest.raises(Refusal, match=says) as caught:
        read_header(path)
    assert caught.value.code == "slice_shard_broken"


@pytest.mark.parametrize("length", [2**64 - 1, MAX_HEADER + 1, 500])
def test_a_header_length_that_the_file_cannot_hold_allocates_nothing(tmp_path: Path, length: int) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + b"{}")
    with pytest.raises(Refusal, match="claims"):
        read_header(path)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "model.safetensors"
    path.write_bytes(data)
    try:
        assert sum(entry.size for entry in read_header(path)) <= len(data)
    except Refusal as refusal:
        assert refusal.code == "slice_shard_broken"


def test_a_good_header_is_read_with_absolute_offsets(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(with_header(GOOD.encode(), b"1234"))
    (entry,) = read_header(path)
    assert (entry.name, entry.offset, entry.size, entry.shape) == ("a", 8 + len(GOOD), 4, (4,))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    root = write(tmp_path / "model")
    (root / FIRST).unlink()
    code, detail = refused(root)
    assert (code, FIRST in detail) == ("slice_shard_missing", True)


def test_a_truncated_shard_is_refused(tmp_path: Path) -> None:
    root = write(tmp_path / "model")
    (root / FIRST).write_bytes((root / FIRST).read_bytes()[:-1])
    assert refused(root)[0] == "slice_shard_broken"


def test_a_tensor_of_the_index_that_is_in_no_file_is_named(tmp_path: Path) -> None:
    root = write(tmp_path / "model")
    edit_index(root, "model.layers.5.extra.weight", FIRST)
    code, detail = refused(root)
    assert (code, "model.layers.5.extra.weight" in detail) == ("slice_tensor_missing", True)


@pytest.mark.parametrize(
    "file", ["../other/model.safetensors", "/etc/passwd", "..", "a/../../x.safetensors", "", "a\\b"]
)
def test_an_index_that_names_a_file_outside_is_refused(tmp_path: Path, file: str) -> None:
    root = write(tmp_path / "model")
    edit_index(root, "lm_head.weight", file)
    assert refused(root)[0] == "slice_path_escapes"


@pytest.mark.parametrize("name", [FIRST, "config.json", INDEX, "tokenizer.json"])
def test_a_link_that_leads_outside_is_refused(tmp_path: Path, name: str) -> None:
    root = write(tmp_path / "model")
    (root / name).rename(tmp_path / "outside")
    (root / name).symlink_to(tmp_path / "outside")
    assert refused(root)[0] == "slice_path_escapes"


def test_the_hub_caches_own_links_are_followed(tmp_path: Path) -> None:
    root = write(tmp_path / "models--x--y" / "snapshots" / "abc")
    blobs = tmp_path / "models--x--y" / "blobs"
    blobs.mkdir()
    for path in list(root.iterdir()):
        path.rename(blobs / f"blob-{path.name}")
        path.symlink_to(Path("../../blobs") / f"blob-{path.name}")
    assert len(open_checkpoint(root).tensors) == len(names())


def test_other_formats_are_refused_by_name(tmp_path: Path) -> None:
    root = tmp_path / "model"
    root.mkdir()
    (root / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (root / "pytorch_model.bin").write_bytes(b"x")
    code, detail = refused(root)
    assert (code, "pytorch_model.bin" in detail) == ("slice_format", True)


def test_shards_without_an_index_are_refused(tmp_path: Path) -> None:
    root = write(tmp_path / "model")
    (root / INDEX).unlink()
    assert refused(root)[0] == "slice_shard_missing"


def test_an_unknown_family_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    code, detail = refused(write(tmp_path / "model", model_type="gpt_neo"))
    assert (code, "deepseek_v3" in detail) == ("slice_family_unknown", True)


@pytest.mark.parametrize(
    "config",
    [
        {"num_hidden_layers": -1},
        {"num_hidden_layers": "6"},
        {"num_hidden_layers": 10**9},
        {"model_type": "qwen3_next", "layer_types": ["full_attention"]},
        {"model_type": "nemotron_h"},
        {"model_type": "nemotron_h", "hybrid_override_pattern": "MXM"},
        {"model_type": "jamba", "attn_layer_period": 0},
        {"model_type": "deepseek_v3", "first_k_dense_replace": "three"},
    ],
)
def test_a_configuration_that_does_not_describe_its_layers_is_refused(
    tmp_path: Path, config: dict[str, object]
) -> None:
    assert refused(write(tmp_path / "model", **config))[0] == "slice_config_broken"


DEEP = '{"model_type":"llama","num_hidden_layers":6,"x":' + "[" * 100 + "]" * 100 + "}"


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"a":' * 50_000, DEEP, '{"model_type":"llama","num_hidden_layers":6,"x":"\\ud800"}']
)
def test_a_config_that_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    root = write(tmp_path / "model")
    (root / "config.json").write_text(text, encoding="utf-8")
    assert refused(root)[0] == "slice_config_broken"


def test_tensors_that_the_index_does_not_name_are_counted(tmp_path: Path) -> None:
    root = write(tmp_path / "model")
    (root / FIRST).write_bytes(encode({**dict.fromkeys(names()[0::2], b"1" * 64), "stray": b"2"}))
    assert open_checkpoint(root).unindexed == ("stray",)


def test_many_keys_with_one_twice_are_refused_in_time_that_grows_with_their_number(tmp_path: Path) -> None:
    empty = '{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    keys = [*(f'"t{i}":{empty}' for i in range(50_000)), f'"t49999":{empty}']
    (tmp_path / "model.safetensors").write_bytes(with_header(f"{{{','.join(keys)}}}".encode()))
    with pytest.raises(Refusal, match="'t49999' twice"):
        read_header(tmp_path / "model.safetensors")


@pytest.mark.parametrize("number", ["01", "9" * 5000, "\u0661", "1_0"])
def test_a_layer_number_that_is_not_canonical_is_an_unknown_name(tmp_path: Path, number: str) -> None:
    name = f"model.layers.{number}.mlp.down_proj.weight"
    subject = read_subject("m", write(tmp_path / "model", {**dict.fromkeys(names(), b"1"), name: b"2"}))
    assert len(subject.census.unknown) == 1 and len(subject.census.unknown[0]) < 200


def test_a_configuration_with_layers_that_no_file_holds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="describes 8 layers; the files hold no tensor of 2, first 6") as caught:
        read_subject("m", write(tmp_path / "model", num_hidden_layers=8))
    assert caught.value.code == "slice_tensor_missing"


def test_names_that_would_drive_a_terminal_are_escaped(tmp_path: Path) -> None:
    tensors = {**dict.fromkeys(names(), b"1"), "model.layers.0.\x1b[31m\nx.weight": b"2"}
    subject = read_subject("m", write(tmp_path / "model", tensors))
    assert subject.census.unknown == ("model.layers.0.\\x1b[31m\\nx",)
    assert "\x1b" not in census_text(subject.model, subject.census)


@pytest.mark.parametrize("size", ["many", [1], {"a": 1}, -4, None])
def test_sizes_of_the_configuration_that_are_none_do_not_end_the_proof(tmp_path: Path, size: object) -> None:
    root = write(tmp_path / "model", vocab_size=size, compress_ratios=size, compress_rates=size, sliding_window=size)
    subject = read_subject("m", root)
    assert (vocabulary(subject.model), token_count(subject.model)) == (1000, 24)


def test_two_tensors_that_would_get_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = read_subject("m", write(tmp_path / "model"))
    monkeypatch.setattr(layout, "renamed", lambda *_: "one")
    with pytest.raises(Refusal, match="would both become 'one'"):
        lay_out(subject.checkpoint, subject.model, Selection((0, 1), 6))
