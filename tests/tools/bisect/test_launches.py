"""Triton kernels are operators of a region too, though torch's dispatcher sees none (here: Triton's interpreter)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def interpreted(engine_python: str) -> None:
    if subprocess.run([engine_python, "-c", "import triton"], capture_output=True, check=False).returncode:
        pytest.skip("the engine's interpreter has no Triton")


def test_launches_are_noted_and_launched_again(
    interpreted: None,
    script: Callable[..., str],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    facts = json.loads(script("launches.py", str(tmp_path_factory.mktemp("launches"))))
    assert len(facts) == 16
    assert [name for name, holds in facts.items() if not holds] == []
