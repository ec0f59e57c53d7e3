"""The side digest: a hash of what makes a side's numbers, and of nothing that changes from one day to the next."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Final

from pydantic import JsonValue

from bitgate.tools.redaction import is_secret_name

DIGEST_VERSION: Final = 1

NUMERIC_PREFIXES: Final = (
    "VLLM_", "CUBLAS", "CUDA_", "CUDNN_", "NVIDIA_TF32", "NVTE_",
    "NCCL_", "NVSHMEM_",
    "TORCH", "PYTORCH_", "ATEN_", "TRITON_", "INDUCTOR_", "FLASH_",
    "FLASHINFER_", "DG_", "DEEP_GEMM_", "DEEPEP_", "MEGATRON_",
    "OMP_", "MKL_", "KMP_", "DNNL_", "ONEDNN_", "OPENBLAS_",
    "GLOO_", "UCX_", "HIP_", "ROCM_", "HSA_", "XLA_",
    "LD_PRELOAD", "PYTHONHASHSEED",
)  # fmt: skip
_VOLATILE: Final = re.compile(
    r"(CACHE_(?:DIR|ROOT|PATH)|_HOME|_ROOT|_PORT|_HOST|_HOST_IP|_ADDR|_RPC_BASE_PATH|_LOGS?(?:_\w+)?|_LOGGING\w*|_DEBUG\w*|_TRACE\w*"
    r"|_VISIBLE_DEVICES|_MPS_\w+|_USAGE\w*|_RUN_ID|_SESSION\w*|_TMPDIR|_CONFIG_ROOT|_ASSETS\w*|_DEVICE_ORDER|_SOCKET_IFNAME"
    r"|_DIST_IDENT|_INSTANCE_ID|_SHM_BUFFER_NAME)$"
    # Images label what they were built with: nothing reads these (VLLM_FLASH_ATTN_VERSION, though, chooses).
    r"|^(?:CUDA_PATH|TORCHELASTIC_\w+|(?:CUDA|CUDNN|NCCL|NVSHMEM|PYTORCH|ROCM|TORCH|TRITON|VLLM)_VERSION$)"
)


def digest_env(env: Mapping[str, str]) -> dict[str, str]:
    """The allow-listed part of an environment: names that can change numbers; no places, ports, logs or secrets."""
    return {
        name: value
        for name, value in sorted(env.items())
        if name.startswith(NUMERIC_PREFIXES) and not _VOLATILE.search(name) and not is_secret_name(name)
    }


def side_digest(
    engine: str,
    options: Mapping[str, JsonValue],
    axes: Iterable[str],
    env: Mapping[str, str],
    stable: Mapping[str, JsonValue],
) -> str:
    """SHA-256 over engine, options, declared axes, allow-listed environment and stable provenance; 64 hex digits.

    The side's name and anything volatile stay out: the same computation under another name has the same digest.
    """
    body = {
        "version": DIGEST_VERSION,
        "engine": engine,
        "options": dict(options),
        "axes": sorted(set(axes)),
        "env": digest_env(env),
        "stable": dict(stable),
    }
    return canonical_digest(body)


def canonical_digest(body: JsonValue | Mapping[str, object]) -> str:
    """SHA-256 of the canonical JSON (sorted keys, no spaces, no NaN)."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
