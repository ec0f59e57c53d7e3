"""Every family is cut, loads with no key missing, unexpected or mismatched, and computes the full model's bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from make_names import DERIVED_NAMES, FIRST_LIST, PLAIN, QUANTISED_NAMES, THEN
from slicing import TWICE, Sliced

from bitgate.tools.slice.census import take_census
from bitgate.tools.slice.checkpoint import open_checkpoint
from bitgate.tools.slice.family import families, read_model
from bitgate.tools.slice.refusal import Refusal

pytestmark = pytest.mark.engine

REFUSED = {"minimax_without_buffers"}
COMPUTED = [name for name in (*PLAIN, *DERIVED_NAMES) if name not in REFUSED and name != "deepseek_v41"]


def of(sliced: dict[str, Sliced | Refusal], name: str) -> Sliced:
    item = sliced[name]
    assert isinstance(item, Sliced), f"{name} was refused: {item}"
    return item


@pytest.mark.parametrize("family", [*FIRST_LIST, *THEN])
def test_the_family_is_in_the_table(family: str) -> None:
    assert family in families()


@pytest.mark.parametrize("name", [*PLAIN, *DERIVED_NAMES, *QUANTISED_NAMES])
def test_the_census_knows_every_name(tiny: Path, name: str) -> None:
    checkpoint = open_checkpoint(tiny / name)
    model = read_model(checkpoint.config)
    census = take_census(model, {entry.name: entry.dtype for entry in checkpoint.tensors.values()})
    assert (census.unknown, census.unknown_keys) == ((), ())


@pytest.mark.parametrize("name", [n for n in (*PLAIN, *DERIVED_NAMES, *QUANTISED_NAMES) if n not in REFUSED])
def test_every_copied_tensor_has_the_bytes_of_its_source(sliced: dict[str, Sliced | Refusal], name: str) -> None:
    item = of(sliced, name)
    assert item.result.different == ()
    copied = open_checkpoint(item.result.path)
    assert {entry.name for entry in copied.tensors.values()} == set(item.layout.mapping.values())
    for old, new in item.layout.mapping.items():
        source, copy = item.checkpoint.tensors[old], copied.tensors[new]
        assert copy.dtype == source.dtype
        if source.size == copy.size:
            assert bytes_of(copy) == bytes_of(source), old


def bytes_of(entry: Any) -> bytes:
    data: bytes = entry.file.read_bytes()[entry.offset : entry.offset + entry.size]
    return data


@pytest.mark.parametrize("name", COMPUTED)
def test_it_loads_in_transformers_with_no_key_missing_or_unexpected(proofs: dict[str, Any], name: str) -> None:
    report = proofs[name]["transformers"]
    wrong = {key: report.get(key) for key in ("missing", "unexpected", "mismatched", "errors") if report.get(key)}
    assert (report["mode"], report["why"], wrong) == ("loaded", "", {})


@pytest.mark.parametrize("name", QUANTISED_NAMES)
def test_a_quantised_slice_loads_or_fits_by_names_and_shapes(proofs: dict[str, Any], name: str) -> None:
    report = proofs[name]["transformers"]
    wrong = {key: report.get(key) for key in ("missing", "unexpected", "mismatched", "errors") if report.get(key)}
    assert wrong == {}
    assert report["mode"] == "loaded" or (report["mode"] == "names and shapes" and report["why"])


@pytest.mark.parametrize("name", COMPUTED)
def test_every_layer_computes_the_full_models_bits(proofs: dict[str, Any], name: str) -> None:
    report = proofs[name]["window"]
    assert report.get("equal"), report
    assert report["finite"] and report["self_test"]["seen"]
    assert report["mode"] == "full model in memory"


@pytest.mark.parametrize("name", TWICE)
def test_the_same_holds_layer_by_layer_from_the_files(proofs: dict[str, Any], name: str) -> None:
    report = proofs[name]["window by layer"]
    assert report.get("equal"), report
    assert report["mode"].startswith("layer by layer")


def test_a_window_that_starts_late_has_the_hidden_state_injected(proofs: dict[str, Any]) -> None:
    rows = proofs["deepseek_v3"]["window"]["layers"]
    assert [(row["old"], row["injected"]) for row in rows] == [(1, True), (2, False), (3, False), (4, False)]


def test_mtp_blocks_come_along_renumbered_and_are_not_called_unexpected(
    sliced: dict[str, Sliced | Refusal], proofs: dict[str, Any]
) -> None:
    item = of(sliced, "deepseek_v3_mtp")
    assert "model.layers.4.eh_proj.weight" in item.layout.mapping.values()
    assert item.layout.config["num_nextn_predict_layers"] == 1
    assert proofs["deepseek_v3_mtp"]["transformers"]["mtp_not_built"] > 0


def test_lightning_attention_without_its_buffers_is_refused(sliced: dict[str, Sliced | Refusal]) -> None:
    refusal = sliced["minimax_without_buffers"]
    assert isinstance(refusal, Refusal)
    assert refusal.code == "slice_depth_dependent" and "slope_rate" in refusal.detail


def test_sources_of_shared_layers_are_kept(sliced: dict[str, Sliced | Refusal]) -> None:
    item = of(sliced, "deepseek_v41")
    kept, text = item.plan.kept, item.layout.config
    assert {2, 3, 6} <= set(kept)
    assert text["kv_source_layer_ids"] == [kept.index(layer) for layer in (2, 3, 6)]
    assert text["candidate_source_layer_id"] == kept.index(2)
    assert text["engram_layer_ids"] == [kept.index(1)]


def test_the_published_forms_keep_their_own_keys(sliced: dict[str, Sliced | Refusal]) -> None:
    nemotron = of(sliced, "nemotron_h_hub").layout.config
    assert (nemotron["hybrid_override_pattern"], nemotron["num_hidden_layers"]) == ("MEM*E", 5)
    native = of(sliced, "deepseek_v4_native").layout.config
    assert native["compress_ratios"] == [0, 0, 4, 128, 4, 128, 0] and native["num_hash_layers"] == 3
    kimi = of(sliced, "kimi_linear_hub").layout.config["linear_attn_config"]
    assert (kimi["full_attn_layers"], kimi["kda_layers"]) == ([5], [1, 2, 3, 4, 6])
    mimo = of(sliced, "mimo_v2_flash_hub").layout.config
    assert mimo["hybrid_layer_pattern"] == [0, 1, 1, 1, 1, 0, 1]


def test_per_layer_embeddings_keep_the_blocks_of_the_kept_layers(sliced: dict[str, Sliced | Refusal]) -> None:
    item = of(sliced, "gemma4_text")
    whole = {copied.name: copied.whole for copied in item.result.tensors}
    assert not whole["model.embed_tokens_per_layer.weight"] and not whole["model.per_layer_model_projection.weight"]
    source = item.checkpoint.tensors["model.embed_tokens_per_layer.weight"]
    copy = open_checkpoint(item.result.path).tensors["model.embed_tokens_per_layer.weight"]
    block = source.size // source.shape[0] // item.model.total
    row = bytes_of(source)[: source.size // source.shape[0]]
    wanted = b"".join(row[layer * block : (layer + 1) * block] for layer in item.plan.kept)
    assert bytes_of(copy)[: len(wanted)] == wanted
