"""Nothing is written that stands somewhere else already, or that the failure does not need."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.engine
def test_weights_rows_and_columns_that_are_not_needed_are_not_written(
    script: Callable[..., str], tmp_path: Path
) -> None:
    facts = json.loads(script("thrift.py", str(tmp_path / "facts")))
    assert len(facts) == 57
    assert [name for name, holds in facts.items() if not holds] == []
