"""A project on disk whose sides are real vLLM engines on a tiny model: for tests and benchmarks."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

from bitgate.tools.config.project import Project

MAKER = Path(__file__).parents[2] / "tools" / "engines" / "worker" / "tiny_model.py"
MODEL = '[model.tiny]\npath = "tiny"\n'
MEMORY = {"VLLM_CPU_KVCACHE_SPACE": "1"}
"""GiB: two engines at once fit on any machine."""


def vllm_side(
    name: str,
    python: str,
    *,
    room: int = 256,
    options: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    expect: str = "",
    **more: object,
) -> str:
    """The tables of a side. `room`: tokens of a request, prompt and answer; `expect`: lines of [side.NAME.expect]."""
    body = {
        "engine": "vllm",
        "python": python,
        "options": {"enforce_eager": True, "max_model_len": room, **(options or {})},
        "env": {**MEMORY, **(env or {})},
        **more,
    }
    lines = [f"{key} = {_toml(value)}" for key, value in body.items()]
    expected = [f"[side.{name}.expect]", expect] if expect else []
    return "\n".join([f"[side.{name}]", *lines, *expected]) + "\n"


def workload(tokens: int, count: int, lengths: tuple[int, int], name: str = "short") -> str:
    """So many prompts of made-up tokens, and so many tokens to answer each."""
    drawn = {"count": count, "length": list(lengths), "vocab": 900}
    lines = [f"{key} = {_toml(value)}" for key, value in drawn.items()]
    return "\n".join([f"[workload.{name}]", f"max_tokens = {tokens}", f"[workload.{name}.generator]", *lines]) + "\n"


def made_project(root: Path, python: str, *tables: str, layers: int | None = None) -> Project:
    """`tables` beside the model's; the model is made by the engine's interpreter."""
    (root / "bitgate.toml").write_text("".join([MODEL, *tables]), encoding="utf-8")
    words = [] if layers is None else ["--layers", str(layers)]
    subprocess.run([python, str(MAKER), str(root / "tiny"), *words], check=True, capture_output=True, timeout=120)
    return Project.load(root)


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(str(key))} = {_toml(item)}" for key, item in value.items()) + " }"
    return json.dumps(value, allow_nan=False)
