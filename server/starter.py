"""The commented configuration that `bitgate init` writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DEFAULT_VOCAB: Final = 1000


@dataclass(frozen=True)
class Answers:
    """What init was told or found out."""

    model_name: str
    model_path: str
    vocab: int
    rollout_python: str
    rollout_engine: str = "vllm"
    trainer_python: str | None = None
    trainer_engine: str = "transformers"


def vocab_of(model: Path) -> int:
    """The vocabulary size that the model's config.json states, or a small one that every model has."""
    try:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        sizes = [config.get("vocab_size"), config.get("text_config", {}).get("vocab_size")]
    except (OSError, ValueError, AttributeError):
        return DEFAULT_VOCAB
    return next((size for size in sizes if isinstance(size, int) and size > 1), DEFAULT_VOCAB)


def starter(answers: Answers) -> str:
    """bitgate.toml, ready to run: a model, a rollout side, a trainer side, a workload, the policy."""
    return "\n".join([_HEAD, _model(answers), _rollout(answers), _trainer(answers), _workload(answers), _POLICY])


def _quoted(text: str) -> str:
    """A TOML basic string; JSON's escapes are among its own."""
    return json.dumps(text)


_HEAD: Final = """\
# bitgate's configuration. No tool writes it: what runs is decided here, by people.
# More files may lie in bitgate.d/*.toml; a table such as [side.rollout] belongs to one file.
# `bitgate doctor` shows what each side would run. docs/configuration.md explains every key.
"""


def _model(answers: Answers) -> str:
    return f"""\
# A checkpoint directory with a name.
[model.{answers.model_name}]
path = {_quoted(answers.model_path)}
"""


def _rollout(answers: Answers) -> str:
    return f"""\
# The engine that samples. `python` is the interpreter that has it; bitgate itself needs no torch.
[side.rollout]
engine = "{answers.rollout_engine}"
python = {_quoted(answers.rollout_python)}
launcher = "local"        # or {{ kind = "torchrun", nproc = 8 }}, srun, ray, ssh, container
model = {_quoted(answers.model_name)}
# axes = ["decode", "chunked_prefill", "prefix_cache"]   # what the deployment uses; default: as the options imply
# owner = "consistency"

[side.rollout.options]    # passed to the engine and recorded; a call may try others for one run
# batch_invariant = true
# max_model_len = 4096

[side.rollout.env]        # of every rank
# VLLM_ATTENTION_BACKEND = "FLASH_ATTN"
"""


def _trainer(answers: Answers) -> str:
    if answers.trainer_python is None:
        return """\
# The trainer that recomputes the sampled tokens' logprobs. Uncomment once an interpreter has it.
# [side.trainer]
# engine = "transformers"
# python = "/path/to/trainer/bin/python"
"""
    return f"""\
# The trainer that recomputes the sampled tokens' logprobs.
[side.trainer]
engine = "{answers.trainer_engine}"
python = {_quoted(answers.trainer_python)}
model = {_quoted(answers.model_name)}
"""


def _workload(answers: Answers) -> str:
    return f"""\
# The tokens that checks run on: seeded, the same on every machine. For your own prompts use
# prompts = "prompts.jsonl" with {{"prompt_token_ids": [...]}} on each line.
[workload.default]
max_tokens = 32

[workload.default.generator]
seed = 0
count = 16
length = [10, 64]
vocab = {answers.vocab}
shared_prefix = 0
"""


_POLICY: Final = """\
[policy]
updates_per_step = 1      # optimizer updates for each rollout step
rollout_floor = 0.70      # share of the baseline's speed that must be kept
corrections = []          # importance-sampling corrections in use, such as "TIS"
# cross_rank_reduction = "none"   # or "fixed": reductions across ranks on the compared path; gate C0 asks
roots = []                # folders besides this one that a call's paths may lie in
run_timeout = "2h"
"""
