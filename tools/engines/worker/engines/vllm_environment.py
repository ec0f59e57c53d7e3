"""What must stand in the environment before vLLM is imported, and the plugin by which its child processes find us."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ..engine import EngineError

BATCH_INVARIANT_FLAG = "BITGATE_BATCH_INVARIANT"
PRODUCTS, ATTENTION = "products", "attention"
PARTS: Final = (ATTENTION, PRODUCTS)
"""What `batch_invariant` is made of on a CPU; one alone is for localising and for measuring, and reaches nothing."""
SPLIT_KV = "VLLM_CPU_ATTN_SPLIT_KV"
VLLM_BATCH_INVARIANT = "VLLM_BATCH_INVARIANT"
FORCED = "bitgate_forced"
"""Key of SamplingParams.extra_args: the tokens to sample, in order."""

ALWAYS = {
    # The engine in this process: its scheduler, weights and kernels can be looked at.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}
UNLESS_SET = {
    # Spinning OpenMP threads of two processes on the same cores slow each other tenfold; no effect on results.
    "OMP_WAIT_POLICY": "PASSIVE",
    "VLLM_LOGGING_LEVEL": "WARNING",
}


def prepare_environment() -> None:
    """To be called before torch or vLLM is imported."""
    os.environ.update(ALWAYS)
    for name, value in UNLESS_SET.items():
        os.environ.setdefault(name, value)


def invariant_parts(given: Any) -> tuple[str, ...]:
    """The parts that an option `batch_invariant` (true, false, or one part) asks for."""
    return PARTS if given is True else tuple(part for part in PARTS if part == given)


def prepare_batch_invariance(platform: str, parts: tuple[str, ...]) -> dict[str, str]:
    """Set what `batch_invariant` means on this platform; returns the variables that were set.

    CUDA: vLLM's own mode. CPU: no KV split here, and the fixed tiles of rows and queries through the plugin
    (vllm_plugin.py).

    Raises: EngineError `option_conflict` when the side's environment says the opposite, `unsupported_option` for one
    part on a GPU.
    """
    if platform == "cuda" and parts != PARTS:
        raise EngineError(
            "unsupported_option",
            f"options.batch_invariant is {parts[0]!r}: on a GPU it is one switch of vLLM's own; use true or false",
        )
    wanted = {VLLM_BATCH_INVARIANT: "1"} if platform == "cuda" else {BATCH_INVARIANT_FLAG: ",".join(parts)}
    if platform == "cpu" and ATTENTION in parts:
        wanted[SPLIT_KV] = "0"
    for name, value in wanted.items():
        given = os.environ.get(name)
        if given not in (None, value):
            raise EngineError(
                "option_conflict",
                f"options.batch_invariant needs {name}={value}, but the side's environment has {name}={given}; "
                "remove one of the two",
            )
    os.environ.update(wanted)
    if platform == "cpu":
        register_plugin()
    return wanted


def register_plugin() -> None:
    """Make `vllm_plugin:register` an entry point of vllm.general_plugins, for this process and its children."""
    package = __package__ or "bitgate_worker"
    stage = Path(os.path.abspath(__file__)).parents[len(package.split("."))]
    folder = stage / f"{package.split('.')[0]}_vllm-1.dist-info"
    if not (folder / "entry_points.txt").exists():
        folder.mkdir(exist_ok=True)
        _write(
            folder / "METADATA",
            f"Metadata-Version: 2.1\nName: {folder.name.removesuffix('-1.dist-info')}\nVersion: 1\n",
        )
        _write(folder / "entry_points.txt", f"[vllm.general_plugins]\nbitgate = {package}.vllm_plugin:register\n")
    paths = os.environ.get("PYTHONPATH", "")
    if str(stage) not in paths.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(stage), paths]))
    if str(stage) not in sys.path:
        sys.path.insert(0, str(stage))


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def numeric_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Variables of the process that choose kernels, as they stand."""
    prefixes = ("VLLM_", "OMP_", "KMP_", "ONEDNN_", "DNNL_", "MKL_", "CUBLAS_", "NCCL_", "TORCH")
    return {name: value for name, value in sorted(environ.items()) if name.startswith(prefixes)}
