from __future__ import annotations

from typing import Any

import pytest

from bitgate.tools.config.digests import digest_env, side_digest
from bitgate.tools.config.project import Project

BASE: dict[str, Any] = {
    "engine": "vllm",
    "options": {"max_model_len": 512, "compilation": {"mode": 0}},
    "axes": ("decode", "graphs"),
    "env": {"VLLM_USE_V1": "1", "PATH": "/bin"},
    "stable": {"versions": {"torch": "2.13.0"}},
}


def digest(**changes: Any) -> str:
    return side_digest(**{**BASE, **changes})


def test_the_digest_is_64_hex_digits_and_the_same_each_time() -> None:
    assert digest() == digest() and len(digest()) == 64 and int(digest(), 16) >= 0


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": "transformers"},
        {"options": {"max_model_len": 513, "compilation": {"mode": 0}}},
        {"options": {"max_model_len": 512, "compilation": {"mode": 3}}},
        {"options": {"max_model_len": "512", "compilation": {"mode": 0}}},
        {"axes": ("decode",)},
        {"env": {"VLLM_USE_V1": "0"}},
        {"env": {"VLLM_USE_V1": "1", "NCCL_ALGO": "Ring"}},
        {"env": {"VLLM_USE_V1": "1", "OMP_NUM_THREADS": "2"}},
        {"stable": {"versions": {"torch": "2.12.0"}}},
        {"stable": {}},
    ],
)
def test_what_makes_numbers_changes_the_digest(changes: dict[str, Any]) -> None:
    assert digest(**changes) != digest()


@pytest.mark.parametrize(
    "name",
    [
        "SLURM_JOB_ID", "HOSTNAME", "PWD", "CUDA_VISIBLE_DEVICES", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "VLLM_PORT",
        "VLLM_LOGGING_LEVEL", "NCCL_DEBUG", "VLLM_HOST_IP", "NCCL_SOCKET_IFNAME", "WANDB_API_KEY", "VLLM_API_KEY",
        "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "VLLM_RPC_BASE_PATH", "TORCH_LOGS", "CUDA_VERSION", "NCCL_VERSION",
    ],
)  # fmt: skip
def test_what_changes_from_day_to_day_does_not(name: str) -> None:
    assert digest(env={**BASE["env"], name: "anything"}) == digest()


@pytest.mark.parametrize(
    "name", ["VLLM_BATCH_INVARIANT", "VLLM_FLASH_ATTN_VERSION", "CUBLAS_WORKSPACE_CONFIG", "NCCL_NVLS_ENABLE"]
)
def test_names_that_change_numbers_are_kept(name: str) -> None:
    assert digest_env({name: "1"}) == {name: "1"}


def test_order_of_options_and_axes_is_immaterial() -> None:
    options = {"compilation": {"mode": 0}, "max_model_len": 512}

    assert digest(options=options, axes=("graphs", "decode", "graphs")) == digest()


def test_the_name_of_a_side_is_not_in_its_digest(project: Project) -> None:
    side = project.side("rollout")

    assert side.digest({}) == side_digest("vllm", side.options, side.axes or (), {"VLLM_USE_V1": "1"}, {})


def test_tried_options_change_the_digest_of_a_side(project: Project) -> None:
    assert project.side("rollout", {"batch_invariant": True}).digest({}) != project.side("rollout").digest({})


def test_a_figure_that_is_not_finite_cannot_be_hashed() -> None:
    with pytest.raises(ValueError, match="JSON"):
        digest(stable={"x": float("nan")})
