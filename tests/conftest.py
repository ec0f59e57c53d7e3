from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session")
def engine_python() -> str:
    """The interpreter that has torch and vLLM; never skipped silently."""
    python = os.environ.get("BITGATE_ENGINE_PYTHON")
    if not python:
        pytest.fail("BITGATE_ENGINE_PYTHON names no engine interpreter; run `make engine`, or use `make test`")
    return python
