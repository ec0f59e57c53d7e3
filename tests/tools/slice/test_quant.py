"""Quantisation rules decide every module of the slice as they decided it in the full model, in every format."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitgate.tools.slice.census import quantisation
from bitgate.tools.slice.keys import Selection
from bitgate.tools.slice.quant.formats import RULE_LISTS, rules_of
from bitgate.tools.slice.quant.precision import cpu_can_compute, precision
from bitgate.tools.slice.quant.rewrite import decisions, module_paths, rewrite_rules
from bitgate.tools.slice.refusal import Refusal

PARTS = ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate", "mlp.experts.0.up_proj", "mlp.experts.1.up_proj")
TOTAL = 12


def paths(kept: tuple[int, ...], total: int = TOTAL, prefix: str = "model.") -> dict[str, str]:
    mapping = {
        f"{prefix}layers.{old}.{part}.weight": f"{prefix}layers.{new}.{part}.weight"
        for new, old in enumerate(kept)
        for part in PARTS
    }
    return module_paths({**mapping, "lm_head.weight": "lm_head.weight"})


def rules(config: dict[str, Any], kept: tuple[int, ...] = (2, 3, 10, 11)) -> dict[str, Any]:
    return rewrite_rules(config, paths(kept), Selection(kept, TOTAL))


def test_names_are_renumbered_and_those_of_dropped_layers_go() -> None:
    listed = ["lm_head", "model.layers.1.mlp.gate", "model.layers.3.mlp.gate", "model.layers.10.self_attn.q_proj"]
    new = rules({"quant_method": "fp8", "modules_to_not_convert": listed})
    assert new["modules_to_not_convert"] == ["lm_head", "model.layers.1.mlp.gate", "model.layers.2.self_attn.q_proj"]


def test_a_name_that_is_no_tensor_is_renumbered_too() -> None:
    new = rules({"quant_method": "fp8", "ignored_layers": ["model.layers.3.self_attn.qkv_proj", "model.layers.5.mlp"]})
    assert new["ignored_layers"] == ["model.layers.1.self_attn.qkv_proj"]


def test_expressions_without_numbers_stay_as_they_are() -> None:
    ignore = ["lm_head", "re:.*self_attn.*", r"re:model\.layers\.\d+\.mlp\.gate$"]
    assert rules({"quant_method": "compressed-tensors", "ignore": ignore})["ignore"] == ignore


def test_expressions_with_layer_numbers_become_names() -> None:
    new = rules({"quant_method": "compressed-tensors", "ignore": [r"re:.*layers\.(2|5|11)\.self_attn\..*"]})
    assert new["ignore"] == [f"model.layers.{i}.self_attn.{p}_proj" for i in (0, 3) for p in "qo"]


@pytest.mark.parametrize(
    ("method", "key", "rule", "layers"),
    [
        ("compressed-tensors", "ignore", r"re:.*layers\.\d\..*gate", (0, 1)),
        ("modelopt", "exclude_modules", "model.layers.?.mlp.gate", (0, 1)),
        ("modelopt", "exclude_modules", "layers.1", (2, 3)),
        ("quark", "exclude", "*layers.1?.mlp.gate", (2, 3)),
    ],
)
def test_a_rule_that_would_choose_other_layers_after_renumbering_becomes_names(
    method: str, key: str, rule: str, layers: tuple[int, ...]
) -> None:
    new = rules({"quant_method": method, key: [rule]})[key]
    assert [f"model.layers.{i}.mlp.gate" in new for i in range(4)] == [i in layers for i in range(4)]


@pytest.mark.parametrize(
    "config",
    [
        {"modules_to_not_convert": "model.layers.1.mlp"},
        {"ignore": [["a"], {}]},
        {"config_groups": {"g": 3}},
        {"config_groups": {"g": {"targets": "Linear"}}},
        {"dynamic": ["a"]},
        {"modules_in_block_to_quantize": [[3]]},
        {"quantization": {"exclude_modules": 3}},
    ],
)
def test_a_list_of_another_shape_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as caught:
        rules({"quant_method": "any", **config})
    assert caught.value.code == "slice_config_broken"


def test_layers_named_under_a_key_that_the_table_lacks_are_refused() -> None:
    with pytest.raises(Refusal, match=r"model\.layers\.3\.mlp\.gate.*no rule table") as caught:
        rules({"quant_method": "auto-round", "extra_config": {"model.layers.3.mlp.gate": {"bits": 16}}})
    assert caught.value.code == "slice_quant_differs"


def test_the_sparsity_part_of_compressed_tensors_follows() -> None:
    part = {"ignore": ["model.layers.3.mlp.gate"], "targets": ["Linear", "model.layers.10.mlp.gate"]}
    new = rules({"quant_method": "compressed-tensors", "sparsity_config": part})["sparsity_config"]
    assert new == {"ignore": ["model.layers.1.mlp.gate"], "targets": ["Linear", "model.layers.2.mlp.gate"]}


def test_a_mixed_list_of_many_modules_is_one_question_for_each_answer() -> None:
    layers = {f"model.layers.{i}.mlp.experts.{e}.up_proj": {"algo": e % 2} for i in range(TOTAL) for e in range(5000)}
    config = {"quantized_layers": layers}
    assert len(rules_of(config, next(row for row in RULE_LISTS if row.key == "quantized_layers"))) == 2


def test_a_number_inside_a_word_is_no_layer() -> None:
    ignore = ["re:.*conv1d.*", "re:.*fc2$"]
    assert rules({"quant_method": "compressed-tensors", "ignore": ignore})["ignore"] == ignore


def test_targets_of_groups_follow() -> None:
    groups = {"a": {"targets": ["Linear", r"re:.*layers\.3\..*q_proj"], "weights": {"num_bits": 4}}}
    new = rules({"quant_method": "compressed-tensors", "config_groups": groups})
    assert new["config_groups"]["a"] == {
        "targets": ["Linear", "model.layers.1.self_attn.q_proj"],
        "weights": {"num_bits": 4},
    }


def test_wildcards_of_modelopt_become_names() -> None:
    kept = (3, 4)
    config = {"quant_method": "modelopt", "exclude_modules": ["lm_head", "model.layers.3*", "*.mlp.gate"]}
    new = rewrite_rules(config, paths(kept, 6), Selection(kept, 6))
    assert new["exclude_modules"][0] == "lm_head" and "*.mlp.gate" in new["exclude_modules"]
    assert "model.layers.0.mlp" in new["exclude_modules"]


def test_mixed_precision_by_layer_follows_in_modelopts_own_file_too() -> None:
    layers = {
        f"model.layers.{i}.mlp.experts.0.up_proj": {"quant_algo": "NVFP4" if i % 2 else "FP8"} for i in range(TOTAL)
    }
    own = {
        "producer": {"name": "modelopt"},
        "quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers},
    }
    new = rules(own)["quantization"]["quantized_layers"]
    assert [new[f"model.layers.{i}.mlp.experts.0.up_proj"]["quant_algo"] for i in range(4)] == ["FP8", "NVFP4"] * 2
    assert len(new) == 4


def test_gptqs_dynamic_rules_stay_expressions() -> None:
    dynamic = {r"-:model\.layers\.[0-3]\.self_attn\..*": {}, r"+:.*\.mlp\..*": {"bits": 8}}
    new = rules({"quant_method": "gptq", "dynamic": dynamic})["dynamic"]
    assert new[r"+:.*\.mlp\..*"] == {"bits": 8}
    assert sorted(key for key in new if key.startswith("-:")) == [
        rf"-:model\.layers\.{i}\.self_attn\.{p}_proj$" for i in (0, 1) for p in "oq"
    ]


def test_quark_and_awq_and_gptq_blocks() -> None:
    quark = rules({"quant_method": "quark", "exclude": ["model.layers.3.*", "lm_head"], "layer_quant_config": {}})
    assert "model.layers.1.mlp.gate" in quark["exclude"]
    layered = rules(
        {"quant_method": "quark", "layer_quant_config": {"model.layers.3.mlp.gate": {"w": 1}, "*q_proj": {}}}
    )
    assert layered["layer_quant_config"] == {"model.layers.1.mlp.gate": {"w": 1}, "*q_proj": {}}
    assert rules({"quant_method": "awq", "modules_to_not_convert": ["mlp.gate"]})["modules_to_not_convert"] == [
        "mlp.gate"
    ]
    blocks = {"quant_method": "gptq", "modules_in_block_to_quantize": [["self_attn.q_proj"], ["mlp"]]}
    assert rules(blocks) == blocks


def test_a_rule_that_would_decide_otherwise_is_refused() -> None:
    """`model.layers.1` is a prefix of layers 10 and 11 for transformers; no rule of the slice says the same to vLLM."""
    with pytest.raises(Refusal) as caught:
        rules({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.1"]})
    assert caught.value.code == "slice_quant_differs" and "model.layers.10" in caught.value.detail


def test_an_expression_that_is_none_is_taken_as_text() -> None:
    broken = {"quant_method": "compressed-tensors", "ignore": ["re:(((", "re:.*layers.[", "lm_head"]}
    assert rules(broken)["ignore"][-1] == "lm_head"


@pytest.mark.parametrize("row", RULE_LISTS, ids=lambda row: f"{row.key}-{'-'.join(row.methods)}")
def test_every_list_of_the_table_is_rewritten(row: Any) -> None:
    name = "model.layers.3.mlp.gate"
    value = {"list": [name], "nested": [[name]], "map": {name: {}}, "groups": {"g": {"targets": [name]}}}[row.shape]
    if row.key == "dynamic":
        value = {r"-:model\.layers\.3\.mlp\.gate": {}}
    config = {"quant_method": (row.methods or ("other",))[0], row.key: value}
    text = str(rules(config)[row.key]).replace("\\", "")
    assert "layers.1.mlp.gate" in text and "layers.3." not in text


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_decisions_are_the_same_or_the_cut_is_refused(data: st.DataObject) -> None:
    kept = tuple(sorted(data.draw(st.sets(st.integers(0, TOTAL - 1), min_size=1))))
    literal = st.builds("model.layers.{}.{}".format, st.integers(0, TOTAL - 1), st.sampled_from(PARTS))
    loose = st.sampled_from(
        ["re:.*gate", r"re:.*layers\.[0-4]\..*", "*.q_proj", "model.layers.1*", "mlp", "lm_head", r"re:.*\.1\..*"]
    )
    key, method = data.draw(
        st.sampled_from(
            [
                ("ignore", "compressed-tensors"),
                ("exclude_modules", "modelopt"),
                ("modules_to_not_convert", "awq"),
                ("exclude", "quark"),
            ]
        )
    )
    config = {"quant_method": method, key: data.draw(st.lists(st.one_of(literal, loose), max_size=6))}
    moved = paths(kept)
    try:
        new = rewrite_rules(config, moved, Selection(kept, TOTAL))
    except Refusal:
        return
    before, after = decisions(config, moved), decisions(new, moved.values())
    assert {moved[path]: found for path, found in before.items()} == after


@pytest.mark.parametrize(
    ("leaves", "found"),
    [
        ({"weight": "BF16"}, "bf16"),
        ({"weight": "F8_E4M3", "weight_scale_inv": "F32"}, "fp8_block"),
        ({"weight": "F8_E4M3", "weight_scale": "BF16"}, "fp8_scaled"),
        ({"weight": "F8_E4M3", "weight_scale": "U8"}, "mxfp8"),
        ({"weight": "U8", "weight_scale": "F8_E4M3", "weight_scale_2": "F32"}, "nvfp4"),
        ({"weight_packed": "U8", "weight_scale": "F8_E4M3", "weight_global_scale": "F32"}, "nvfp4"),
        ({"weight_packed": "I32", "weight_scale": "BF16", "weight_shape": "I64"}, "packed_int32"),
        ({"blocks": "U8", "scales": "U8", "bias": "BF16"}, "mxfp4"),
        ({"weight": "I8", "scale": "F8_E8M0"}, "mxfp4"),
        ({"weight": "F8_E4M3", "scale": "F8_E8M0"}, "fp8_block"),
        ({"weight": "I8", "weight_scale": "F32"}, "int8_scaled"),
    ],
)
def test_precision_is_read_from_what_lies_beside_the_weight(leaves: dict[str, str], found: str) -> None:
    assert precision("fp8", leaves) == found


def test_a_cpu_computes_plain_formats_only() -> None:
    assert cpu_can_compute({"bf16", "fp32", "int8_scaled"})
    assert not cpu_can_compute({"bf16", "nvfp4"}) and not cpu_can_compute({"fp8_block"})


def test_the_quantisation_of_a_nested_text_model_is_found() -> None:
    assert quantisation({"text_config": {"quantization_config": {"quant_method": "fp8"}}}) == {"quant_method": "fp8"}
