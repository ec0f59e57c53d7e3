"""Plans are functions of configurations: the shortest window, what it depends on, and what it says when it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitgate.tools.slice import families as package
from bitgate.tools.slice.census import take_census
from bitgate.tools.slice.family import Model, families, read_model, rewritten
from bitgate.tools.slice.keys import Selection
from bitgate.tools.slice.plan import Plan, make_plan
from bitgate.tools.slice.refusal import Refusal

NANO = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
V4 = [0, 0, *[4, 128] * 20, 4]
ZAMBA = (["mamba"] + (["mamba"] * 5 + ["hybrid"]) * 7 + ["mamba"] * 4 + ["hybrid"] + ["mamba"] * 3 + ["hybrid"]) + [
    "mamba"
] * 2
CONFIGS: dict[str, tuple[dict[str, Any], int, int]] = {
    "nemotron_3_nano": ({"model_type": "nemotron_h", "hybrid_override_pattern": NANO}, 2, 5),
    "qwen3_next": ({"model_type": "qwen3_next", "num_hidden_layers": 48, "full_attention_interval": 4}, 1, 4),
    "jamba": ({"model_type": "jamba", "num_hidden_layers": 32}, 1, 5),
    "deepseek_v3": ({"model_type": "deepseek_v3", "num_hidden_layers": 61, "first_k_dense_replace": 3}, 1, 4),
    "gpt_oss": ({"model_type": "gpt_oss", "num_hidden_layers": 36}, 0, 3),
    "gemma3": ({"model_type": "gemma3_text", "num_hidden_layers": 34, "sliding_window_pattern": 6}, 3, 4),
    "llama4_maverick": (
        {"model_type": "llama4_text", "num_hidden_layers": 48, "interleave_moe_layer_step": 2},
        0,
        5,
    ),
    "zamba2": ({"model_type": "zamba2", "num_hidden_layers": 54, "layers_block_type": ZAMBA}, 4, 4),
    "deepseek_v4_flash": (
        {"model_type": "deepseek_v4", "num_hidden_layers": 43, "compress_ratios": [*V4, 0], "num_hash_layers": 3},
        0,
        6,
    ),
    "glm_5": (
        {"model_type": "glm_moe_dsa", "num_hidden_layers": 78, "index_topk_freq": 4, "index_skip_topk_offset": 3},
        1,
        7,
    ),
}


def planned(config: dict[str, Any], layers: list[int] | None = None, limit: int = 6) -> tuple[Model, Plan]:
    model = read_model(config)
    return model, make_plan(model, take_census(model, {}), layers, limit)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_window_is_the_shortest_that_covers_classes_and_pairs(name: str) -> None:
    config, start, length = CONFIGS[name]
    _, plan = planned(config, limit=7)
    assert (plan.kept[0], len(plan.kept)) == (start, length)
    assert plan.classes_missed == () and plan.pairs_missed == ()


def test_a_model_that_needs_more_layers_says_how_many() -> None:
    with pytest.raises(Refusal, match=r"needs 7 layers .* max_layers=7") as caught:
        planned(CONFIGS["glm_5"][0])
    assert caught.value.code == "slice_needs_more_layers"


def test_neighbours_that_exist_only_in_the_slice_are_listed() -> None:
    _, plan = planned(CONFIGS["deepseek_v3"][0])
    assert plan.synthetic == (("embedding", "layer 1 (mla+dense)"), ("layer 4 (mla+moe)", "final norm"))


def test_layers_of_the_users_choice_are_kept_and_marked() -> None:
    _, plan = planned(CONFIGS["deepseek_v3"][0], layers=[0, 10, 60])
    assert (plan.kept, plan.by_user, plan.contiguous) == ((0, 10, 60), True, False)
    assert plan.pairs_missed == (("mla+dense", "mla+dense"), ("mla+dense", "mla+moe"), ("mla+moe", "mla+moe"))
    assert plan.injections == (1, 2)


def test_a_layer_that_shares_indices_brings_the_layer_that_makes_them() -> None:
    _, plan = planned(CONFIGS["glm_5"][0], layers=[8, 9])
    assert (plan.kept, plan.closure) == ((6, 8, 9), (6,))


def test_layers_that_share_kv_bring_the_layer_that_stores_it() -> None:
    config = {"model_type": "gemma4_text", "num_hidden_layers": 35, "num_kv_shared_layers": 20}
    config["layer_types"] = (["sliding_attention"] * 4 + ["full_attention"]) * 7
    model, plan = planned(config, layers=[20, 34])
    assert plan.kept == (13, 14, 20, 34)
    assert rewritten(model, plan.selection)["num_kv_shared_layers"] == 2


def test_layers_that_no_key_can_describe_are_refused() -> None:
    config = {"model_type": "jamba", "num_hidden_layers": 32}
    with pytest.raises(Refusal, match="cannot describe layers 0, 1, 3, 4, 5, 12") as caught:
        planned(config, layers=[0, 1, 3, 4, 5, 12])
    assert caught.value.code == "slice_not_expressible"


def test_gemma4_must_end_on_full_attention() -> None:
    config = {"model_type": "gemma4_text", "num_hidden_layers": 12}
    assert planned(config, limit=9)[1].kept[-1] % 6 == 5
    with pytest.raises(Refusal, match="cannot describe"):
        planned(config, layers=[5, 6])


def test_a_window_of_llama4_starts_where_vllms_step_agrees() -> None:
    with pytest.raises(Refusal, match="cannot describe"):
        planned(CONFIGS["llama4_maverick"][0], layers=[1, 2, 3])


def test_layers_of_gpt_oss_keep_the_parity_by_which_vllm_slides() -> None:
    config = CONFIGS["gpt_oss"][0]
    assert planned(config, layers=[2, 3, 6])[1].kept == (2, 3, 6)
    with pytest.raises(Refusal, match="cannot describe"):
        planned(config, layers=[1, 2, 3])


def test_sliding_layers_of_qwen2_moe_become_a_list() -> None:
    config = {"model_type": "qwen2_moe", "num_hidden_layers": 8, "use_sliding_window": True, "max_window_layers": 4}
    new = rewritten(read_model(config), Selection((2, 3, 4, 5), 8))
    assert new["layer_types"] == ["sliding_attention", *["full_attention"] * 3]
    assert new["max_window_layers"] == 2


def test_periods_become_lists_so_that_a_window_may_start_anywhere() -> None:
    model, plan = planned(CONFIGS["qwen3_next"][0])
    config = rewritten(model, plan.selection)
    assert config["layer_types"] == ["linear_attention", "linear_attention", "full_attention", "linear_attention"]
    assert "full_attention_interval" not in config


def test_sparse_steps_of_qwen_become_a_list_of_dense_layers() -> None:
    config = {"model_type": "qwen3_moe", "num_hidden_layers": 12, "decoder_sparse_step": 3, "mlp_only_layers": [8]}
    model = read_model(config)
    new = rewritten(model, Selection((2, 3, 4, 5, 8), 12))
    assert (new["mlp_only_layers"], new["decoder_sparse_step"]) == ([1, 2, 4], 1)


def test_lists_of_sizes_follow_the_kept_mlp_layers() -> None:
    config = {"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*-M-", "intermediate_size": [10, 20, 30]}
    new = rewritten(read_model(config), Selection((2, 3, 4, 5), 7))
    assert (new["hybrid_override_pattern"], new["intermediate_size"]) == ("M*-M", [20])


def test_counts_of_half_layers_stay_twice_the_layers() -> None:
    config = {"model_type": "longcat_flash", "num_layers": 14, "num_hidden_layers": 28}
    new = rewritten(read_model(config), Selection((3, 4), 14))
    assert (new["num_layers"], new["num_hidden_layers"]) == (2, 4)


def test_mtp_can_be_left_out() -> None:
    config = {**CONFIGS["deepseek_v4_flash"][0], "num_nextn_predict_layers": 1}
    model = read_model(config)
    new = rewritten(model, Selection((0, 1, 2), 43), keep_mtp=False)
    assert (new["num_nextn_predict_layers"], new["compress_ratios"]) == (0, [0, 0, 4])
    assert rewritten(model, Selection((0, 1, 2), 43))["compress_ratios"] == [0, 0, 4, 0]


def test_a_list_with_an_entry_a_layer_that_no_family_knows_is_reported() -> None:
    config = {"model_type": "llama", "num_hidden_layers": 8, "mystery": [0] * 8}
    model = read_model(config)
    assert take_census(model, {}).unknown_keys == ("mystery",)


@pytest.mark.parametrize("value", [{"odd_layers": [3]}, {"sizes": {"0": 4, "7": 8}}])
def test_layer_numbers_that_no_family_knows_are_reported(value: dict[str, Any]) -> None:
    model = read_model({"model_type": "llama", "num_hidden_layers": 8, **value})
    assert take_census(model, {}).unknown_keys == tuple(value)


@pytest.mark.parametrize("value", [{"mtp_layer_ids": [3]}, {"eos_token_id": [1, 2]}, {"rope_scaling": {"factor": 2}}])
def test_lists_that_speak_of_no_layer_are_not(value: dict[str, Any]) -> None:
    model = read_model({"model_type": "llama", "num_hidden_layers": 8, **value})
    assert take_census(model, {}).unknown_keys == ()


def test_a_deep_model_that_needs_every_layer_says_so_at_once() -> None:
    types = ["full_attention", *["linear_attention"] * 998, "full_attention"]
    config = {"model_type": "qwen3_next", "num_hidden_layers": 1000, "layer_types": types, "mlp_only_layers": [999]}
    with pytest.raises(Refusal, match=r"needs 1000 layers \(0-999\).*max_layers=1000"):
        planned(config)


def test_unknown_names_are_reported_and_never_guessed() -> None:
    model = read_model({"model_type": "llama", "num_hidden_layers": 2})
    names = ["model.layers.0.self_attn.zz_proj.weight", "model.layers.7.mlp.up_proj.weight", "model.odd.weight"]
    census = take_census(model, dict.fromkeys(names, "BF16"))
    assert census.unknown == ("model.layers.0.self_attn.zz_proj", "model.layers.7.mlp.up_proj", "model.odd")


@settings(max_examples=60, deadline=None)
@given(st.text("ME*-", min_size=1, max_size=30), st.data())
def test_any_pick_of_a_listed_family_keeps_its_operators(pattern: str, data: st.DataObject) -> None:
    kept = data.draw(st.sets(st.integers(0, len(pattern) - 1), min_size=1))
    model = read_model({"model_type": "nemotron_h", "hybrid_override_pattern": pattern})
    new = rewritten(model, Selection(tuple(sorted(kept)), len(pattern)))
    assert new["hybrid_override_pattern"] == "".join(pattern[i] for i in sorted(kept))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 8), st.integers(1, 4), st.integers(0, 3), st.data())
def test_every_window_of_jamba_can_be_described(
    total: int, period: int, offset: int, experts: int, first: int, data: st.DataObject
) -> None:
    config = {"model_type": "jamba", "num_hidden_layers": total, "attn_layer_period": period}
    config |= {
        "attn_layer_offset": offset % period,
        "expert_layer_period": experts,
        "expert_layer_offset": first % experts,
    }
    start = data.draw(st.integers(0, total - 1))
    end = data.draw(st.integers(start + 1, total))
    model = read_model(config)
    new = read_model(rewritten(model, Selection(tuple(range(start, end)), total)))
    assert new.kinds == model.kinds[start:end]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from("MEA"), min_size=1, max_size=14))
def test_no_shorter_window_covers_as_much(letters: list[str]) -> None:
    pattern = "".join(letters).replace("A", "*")
    model, plan = planned({"model_type": "nemotron_h", "hybrid_override_pattern": pattern}, limit=20)
    pairs = {pattern[i : i + 2] for i in range(len(pattern) - 1)}
    short = len(plan.kept) - 1
    for start in range(len(pattern) - short + 1):
        part = pattern[start : start + short]
        covered = set(part) == set(pattern) and {part[i : i + 2] for i in range(max(len(part) - 1, 0))} == pairs
        assert not covered


def test_adding_a_file_adds_a_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "from bitgate.tools.slice.family import Family\nfrom bitgate.tools.slice.kinds import uniform\n"
    text += 'FAMILY = Family(names=("brand_new",), kinds=uniform("full_attention", "mlp"))\n'
    (tmp_path / "brand_new.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    families.cache_clear()
    try:
        assert planned({"model_type": "brand_new", "num_hidden_layers": 3})[1].kept == (0, 1)
    finally:
        families.cache_clear()
