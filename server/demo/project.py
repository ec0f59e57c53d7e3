"""The demo's project: a seeded tiny checkpoint made by the engine's interpreter, and a commented configuration."""

from __future__ import annotations

import json
import subprocess
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final

from bitgate.tools.errors import BitgateError

MAKER_TIMEOUT_S: Final = 300.0

CONFIG: Final = """\
# Made by `bitgate demo`. A side is a named way to compute logprobs; docs/configuration.md explains every key.

[model.tiny]
path = "tiny-qwen3"                  # 4 layers of Qwen3 with random weights of seed {seed}

[side.baseline]                      # vLLM as it comes: what speed is measured against
engine = "vllm"
owner = "baseline"
python = {python}
options = {{ enforce_eager = true, max_model_len = 1024 }}
env = {{ VLLM_CPU_KVCACHE_SPACE = "1" }}
axes = ["decode", "chunked_prefill", "prefix_cache"]

[side.rollout]                       # vLLM made batch-invariant
engine = "vllm"
python = {python}
options = {{ enforce_eager = true, max_model_len = 1024, batch_invariant = true }}
env = {{ VLLM_CPU_KVCACHE_SPACE = "1" }}
axes = ["decode", "chunked_prefill", "prefix_cache"]

[side.transformers]                  # an ordinary trainer
engine = "transformers"
python = {python}

[side.trainer]                       # a trainer whose forward calls the rollout's own kernels
engine = "vllm_kernels"
python = {python}
options = {{ enforce_eager = true, batch_invariant = true }}

[workload.short]
max_tokens = 16
[workload.short.generator]
seed = {seed}
count = 16
length = [10, 100]
vocab = 1024
shared_prefix = 6
prefix_groups = 4
"""


def make_project(folder: Path, python: str, seed: int) -> None:
    """Write the checkpoint and bitgate.toml into `folder`; a folder made with the same seed is used again.

    Raises:
        BitgateError: the interpreter could not make the checkpoint; the text ends with what it printed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stamp = folder / "seed"
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != str(seed):
        make_checkpoint(folder / "tiny-qwen3", python, seed)
        stamp.write_text(str(seed), encoding="utf-8")
    config = CONFIG.format(seed=seed, python=json.dumps(python))
    (folder / "bitgate.toml").write_text(config, encoding="utf-8")


def make_checkpoint(out: Path, python: str, seed: int) -> None:
    with as_file(files("bitgate.tools.engines.worker") / "tiny_model.py") as script:
        command = [python, str(script), str(out), "--family", "qwen3", "--seed", str(seed)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=MAKER_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BitgateError(f"{python} could not make the checkpoint: {error}") from error
    if done.returncode:
        raise BitgateError(f"{python} could not make the checkpoint (exit {done.returncode}):\n{done.stderr[-2000:]}")
