from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bitgate.tools.config.project import Project

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes bitgate.toml, and fragments by name; returns the project's root."""

    def files(main: str = "", **fragments: str) -> Path:
        (tmp_path / "bitgate.toml").write_text(main, encoding="utf-8")
        (tmp_path / "bitgate.d").mkdir(exist_ok=True)
        for name, text in fragments.items():
            (tmp_path / "bitgate.d" / f"{name}.toml").write_text(text, encoding="utf-8")
        return tmp_path

    return files


SIDES = """
[model.tiny]
path = "checkpoints/tiny"

[side.rollout]
engine = "vllm"
python = "env/bin/python"
launcher = "local"
env = { VLLM_USE_V1 = 1, HF_TOKEN = "hf_secretsecretsecretsecret" }
options = { max_model_len = 512 }
axes = ["decode", "chunked_prefill"]

[workload.short]
max_tokens = 8
[workload.short.generator]
count = 4
length = [3, 6]
"""


@pytest.fixture
def project(write: Write) -> Project:
    return Project.load(write(SIDES))
