"""The names of the tiny checkpoints, for parametrisation without torch; a test compares them with what is made."""

from __future__ import annotations

from tiny_configs import CONFIGS

FIRST_LIST = [
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_5",
    "qwen3_5_moe",
    "llama",
    "mixtral",
    "deepseek_v3",
    "deepseek_v32",
    "deepseek_v4",
    "nemotron_h",
    "gpt_oss",
    "glm4_moe",
    "glm_moe_dsa",
    "gemma3",
    "mamba2",
]
THEN = [
    "gemma4",
    "llama4",
    "falcon_h1",
    "jamba",
    "granitemoehybrid",
    "bamba",
    "zamba2",
    "minimax",
    "minimax_m2",
    "kimi_linear",
    "mimo_v2_flash",
    "longcat_flash",
    "deepseek_v41",
]
PLAIN = list(CONFIGS)
DERIVED_NAMES = [
    "deepseek_v3_mtp",
    "glm4_moe_mtp",
    "glm_moe_dsa_mtp",
    "qwen3_next_mtp",
    "qwen3_next_interval",
    "qwen3_5_mtp",
    "nemotron_h_hub",
    "deepseek_v4_native",
    "deepseek_v41",
    "kimi_linear_hub",
    "mimo_v2_flash_hub",
    "minimax_without_buffers",
]
QUANTISED_NAMES = [
    "deepseek_v3_fp8",
    "qwen3_compressed",
    "nemotron_h_nvfp4",
    "llama_awq",
    "qwen3_moe_gptq",
    "gpt_oss_mxfp4",
]
