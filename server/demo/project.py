"""The demo's project: a seeded tiny checkpoint made by the engine's interpreter, a commented configuration, no past."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final

from bitgate.tools.config.project import STATE
from bitgate.tools.errors import BitgateError
from bitgate.tools.provenance.hashing import LIST_NAME

BEFORE: Final = f"{STATE}.before"
"""The ledger of the demo before this one."""
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
env = {{ VLLM_CPU_KVCACHE_SPACE = "1", TORCHINDUCTOR_CACHE_DIR = {compiled} }}
axes = ["decode", "chunked_prefill", "prefix_cache"]

[side.candidate]                     # a knob that the baseline agent tried
engine = "vllm"
owner = "baseline"
python = {python}
options = {{ enforce_eager = true, max_model_len = 1024, max_num_seqs = 4 }}
env = {{ VLLM_CPU_KVCACHE_SPACE = "1", TORCHINDUCTOR_CACHE_DIR = {compiled} }}
axes = ["decode", "chunked_prefill", "prefix_cache"]

[side.rollout]                       # vLLM made batch-invariant
engine = "vllm"
python = {python}
options = {{ enforce_eager = true, max_model_len = 1024, batch_invariant = true }}
env = {{ VLLM_CPU_KVCACHE_SPACE = "1", TORCHINDUCTOR_CACHE_DIR = {compiled} }}
axes = ["decode", "chunked_prefill", "prefix_cache"]

[side.rollout.expect.backends]       # what must be seen in the worker, and is declared to differ from the baseline
"operators.*Linear" = "*in tiles of 16 rows"
"operators.ParallelLMHead" = "*in tiles of 16 rows"
"operators.VocabParallelEmbedding" = "*in tiles of 16 rows"
"kernels.linear" = "*rows=16?"
"kernels.attention" = "*split_kv=0*"

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
count = 12
length = [10, 100]
vocab = 1024
shared_prefix = 6
prefix_groups = 4

[policy]                             # what gate C0 asks a person to declare
updates_per_step = 1
corrections = []
cross_rank_reduction = "none"
rollout_floor = 0.70
"""


def make_project(folder: Path, python: str, seed: int) -> None:
    """Write the checkpoint and bitgate.toml into `folder`; a checkpoint made with the same seed is used again.

    A ledger that lies there is put aside: the demo shows how one begins.

    Raises:
        BitgateError: the interpreter could not make the checkpoint; the text ends with what it printed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stamp = folder / "seed"
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != str(seed):
        make_checkpoint(folder / "tiny-qwen3", python, seed)
        stamp.write_text(str(seed), encoding="utf-8")
    names = {"python": json.dumps(python), "compiled": json.dumps(str(compiled_by(folder, python)))}
    config = CONFIG.format(seed=seed, **names)
    (folder / "bitgate.toml").write_text(config, encoding="utf-8")
    put_aside(folder / STATE, folder / BEFORE)


def compiled_by(folder: Path, python: str) -> Path:
    """Where the engines keep code that they compile: from demo to demo, while the packages it is made of are the same.

    The place that they would choose is shared with every other environment of the machine, and check_provenance rightly
    knows nothing of code that is older than the one that runs.
    """
    packages = sorted(Path(python).parent.parent.glob("lib/python*/site-packages"))
    made = [str(path.stat().st_mtime_ns) for path in packages]
    return folder.resolve() / "compiled" / hashlib.sha256("\n".join([python, *made]).encode()).hexdigest()[:12]


def put_aside(state: Path, before: Path) -> None:
    """The ledger before the last one goes; the last one stays beside the new one."""
    if not state.is_dir():
        return
    shutil.rmtree(before, ignore_errors=True)
    state.rename(before)
    hashes = before / LIST_NAME
    if hashes.is_file():  # digests of files by their identity, which stay true
        state.mkdir()
        hashes.rename(state / LIST_NAME)


def make_checkpoint(out: Path, python: str, seed: int) -> None:
    with as_file(files("bitgate.tools.engines.worker") / "tiny_model.py") as script:
        command = [python, str(script), str(out), "--family", "qwen3", "--seed", str(seed)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=MAKER_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BitgateError(f"{python} could not make the checkpoint: {error}") from error
    if done.returncode:
        raise BitgateError(f"{python} could not make the checkpoint (exit {done.returncode}):\n{done.stderr[-2000:]}")
