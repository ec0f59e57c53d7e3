"""Adapters: which options an engine has, what a call may try, which axes follow, and how to bring them about."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bitgate.tools.config.model import ExpectConfig
from bitgate.tools.config.sides import Model, Side
from bitgate.tools.config.workloads import TokenSequence
from bitgate.tools.engines.adapters import ADAPTERS, adapter_of
from bitgate.tools.engines.eviction import blocks_for_eviction, evictions
from bitgate.tools.errors import RequestError
from bitgate.tools.runs.launchers import LocalLauncher


def side(engine: str = "vllm", python: str | None = None, tried: dict[str, Any] | None = None, **options: Any) -> Side:
    return Side(
        name="rollout",
        engine=engine,
        python=python,
        launcher=LocalLauncher(),
        env={},
        options={**options, **(tried or {})},
        axes=None,
        owner=None,
        expect=ExpectConfig(),
        model=None,
        module=None,
        capture=None,
        source=None,
        tried=tried or {},
    )


@pytest.fixture
def installed(tmp_path: Path) -> str:
    """An interpreter whose vLLM and torch are only their sources: nothing is imported to read them."""
    packages = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    (packages / "vllm" / "engine").mkdir(parents=True)
    (packages / "torch").mkdir()
    source = "class EngineArgs:\n    enforce_eager: bool = False\n    brand_new_option: int = 1\n"
    (packages / "vllm" / "engine" / "arg_utils.py").write_text(source, encoding="utf-8")
    (packages / "torch" / "version.py").write_text("cuda: str | None = None\nhip = None\n", encoding="utf-8")
    (tmp_path / "env" / "bin").mkdir()
    return str(tmp_path / "env" / "bin" / "python")


def test_every_engine_has_an_adapter_and_a_misspelt_one_names_the_nearest() -> None:
    assert [adapter_of(name).name for name in ADAPTERS] == list(ADAPTERS)
    with pytest.raises(RequestError, match="engine: got 'vlm'.*Did you mean 'vllm'"):
        adapter_of("vlm")


def test_an_unknown_option_names_the_nearest_one(installed: str) -> None:
    adapter_of("vllm").check_options(side(python=installed, brand_new_option=3, batch_invariant=True))
    with pytest.raises(RequestError, match="side.rollout.options.enforce_eagr.*Did you mean 'enforce_eager'"):
        adapter_of("vllm").check_options(side(python=installed, enforce_eagr=True))


def test_without_a_readable_interpreter_the_recorded_names_count() -> None:
    adapter_of("vllm").check_options(side(tensor_parallel_size=2))
    with pytest.raises(RequestError, match="Did you mean 'tensor_parallel_size'"):
        adapter_of("vllm").check_options(side(tensor_paralel_size=2))


@pytest.mark.parametrize(
    ("tried", "words"),
    [
        ({"worker_cls": "x.y"}, "A call may try these"),
        ({"trust_remote_code": True}, "A call may try these"),
        ({"hf_overrides": {}}, "A call may try these"),
        ({"enforce_eager": "yes"}, "true or false"),
        ({"batch_invariant": "linears"}, "true or false or 'attention' or 'products'"),
        ({"enforce_eager": "attention"}, "true or false"),
        ({"block_size": 0}, "a whole number from 1"),
        ({"block_size": True}, "a whole number from 1"),
        ({"attention_backend": "../x"}, "a plain name"),
        ({"quantization": "fp8\n"}, "a plain name"),
        ({"gpu_memory_utilization": 1.5}, "above 0, up to 1"),
        ({"compilation_config": {"backend": "my.module"}}, "compilation_config.backend"),
        ({"compilation_config": 3}, "a table with the keys mode, cudagraph_mode"),
    ],
)
def test_a_call_may_try_kernels_batches_and_caches_but_name_no_code_or_file(tried: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        adapter_of("vllm").check_options(side(tried=tried))


def test_a_call_may_try_what_is_listed() -> None:
    tried = {"batch_invariant": True, "max_num_batched_tokens": 64, "compilation_config": {"mode": 0}}
    adapter_of("vllm").check_options(side(tried=tried))
    adapter_of("vllm").check_options(side(tried={"batch_invariant": "products"}, batch_invariant="products"))


def test_one_part_of_batch_invariance_is_for_the_rollout_engine_alone(installed: str) -> None:
    for engine in ("vllm_kernels", "transformers"):
        with pytest.raises(RequestError, match="batch_invariant.*true or false"):
            adapter_of(engine).check_options(side(engine, python=installed, tried={"batch_invariant": "products"}))


@pytest.mark.parametrize("engine", ["python", "capture"])
def test_nothing_can_be_tried_on_a_module_or_on_files(engine: str) -> None:
    with pytest.raises(RequestError, match="no options"):
        adapter_of(engine).check_options(side(engine, tried={"path": "/etc/passwd"}))


def test_what_bitgate_sets_itself_cannot_be_set() -> None:
    with pytest.raises(RequestError, match="options.model.*Remove it"):
        adapter_of("vllm").check_options(side(model="other"))


def test_axes_follow_from_the_options_and_the_platform(installed: str) -> None:
    vllm = adapter_of("vllm")
    assert set(vllm.default_axes(side(python=installed))) == {
        "decode", "batching", "preemption", "chunked_prefill", "prefix_cache",
    }  # fmt: skip
    assert "graphs" in vllm.default_axes(side())
    assert "graphs" not in vllm.default_axes(side(enforce_eager=True))
    few = vllm.default_axes(side(python=installed, enable_prefix_caching=False, enable_chunked_prefill=False))
    assert not {"prefix_cache", "chunked_prefill"} & set(few)
    assert "tensor_parallel" in vllm.default_axes(side(tensor_parallel_size=2))
    assert "graphs" in vllm.not_applicable(side(python=installed))


def test_variants_bring_chunks_caching_and_eviction_about(installed: str) -> None:
    sequences = [TokenSequence(tuple(range(1, n))) for n in (20, 64, 121, 130, 260)]
    found = adapter_of("vllm").variants(side(python=installed), sequences, 16)
    assert set(found) == {"chunked_prefill", "prefix_cache", "preemption"}
    budget = found["chunked_prefill"]["max_num_batched_tokens"]
    assert isinstance(budget, int) and budget < 259 / 2 and budget % 16
    assert found["preemption"]["max_model_len"] == 259 + 16 + 1


def test_long_prompts_cross_block_edges_within_the_models_reach(tmp_path: Path, installed: str) -> None:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 200}', encoding="utf-8")
    lengths = adapter_of("vllm").long_lengths(side(python=installed), Model("m", tmp_path), 16)
    assert lengths == (119, 128, 129)
    assert adapter_of("vllm").long_lengths(side(python=installed, block_size=32), Model("m", tmp_path), 16)[-1] == 67


def test_the_cache_for_eviction_is_the_largest_that_evicts() -> None:
    prompts, tokens, block = [30, 30, 31, 5], 8, 32
    count = blocks_for_eviction(prompts, tokens, block, 256)
    assert count is not None
    usable = count - 1
    assert evictions(prompts, tokens, block, 256, usable) > 0
    assert evictions(prompts, tokens, block, 256, usable + 1) == 0


def test_no_cache_size_evicts_sequences_that_never_grow_into_a_new_block() -> None:
    assert blocks_for_eviction([3, 4], 2, 128, 256) is None
    assert blocks_for_eviction([], 2, 128, 256) is None


def test_a_variant_changes_nothing_of_the_side_it_is_laid_over() -> None:
    original = side(enforce_eager=True)
    adapter_of("vllm").variants(original, [TokenSequence((1, 2, 3))], 4)
    assert original == replace(original)
    assert original.options == {"enforce_eager": True}


def test_megatron_packs_where_its_layers_may_or_where_the_side_says_that_it_does(installed: str) -> None:
    megatron = adapter_of("megatron")
    elsewhere, here = side("megatron"), side("megatron", installed)
    assert megatron.default_axes(elsewhere) == ("batching", "packing", "micro_batch")
    assert megatron.layouts(elsewhere) == ("single", "padded", "packed")
    for local in (here, side("megatron", transformer_impl="local"), side("megatron", device="cpu")):
        assert megatron.default_axes(local) == ("batching", "micro_batch")
        assert megatron.layouts(local) == ("single", "padded")
        assert megatron.layouts(replace(local, axes=("packing",))) == ("single", "padded", "packed")


def test_megatron_takes_its_own_options_and_names_the_nearest_of_others() -> None:
    adapter_of("megatron").check_options(side("megatron", make_vocab_size_divisible_by=1, moe_router_dtype="fp32"))
    with pytest.raises(RequestError, match="side.rollout.options.transformer_imp.*Did you mean 'transformer_impl'"):
        adapter_of("megatron").check_options(side("megatron", transformer_imp="local"))
    with pytest.raises(RequestError, match="moe_router_dtype: got 'bf16'"):
        adapter_of("megatron").check_options(side("megatron", tried={"moe_router_dtype": "bf16"}))
