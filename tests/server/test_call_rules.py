"""Which sides a call would run, read off its request: whatever field names them."""

from __future__ import annotations

import pytest
from pydantic import JsonValue

from bitgate.server.call_rules import sides_of
from bitgate.tools.config.project import Project
from bitgate.tools.registry import ToolRequest

CONFIG = "".join(
    f'[side.{name}]\nengine = "python"\npython = "python3"\nmodule = "m.py"\n'
    for name in ("rollout", "trainer", "baseline")
)


class Anything(ToolRequest):
    side: str | None = None
    other: str | None = None
    pair: list[str] = []
    by_leg: dict[str, str] = {}
    model: str | None = None
    check: str | None = None
    breakdown: bool = False
    plan_only: bool = False
    options: dict[str, dict[str, JsonValue]] = {}


@pytest.fixture
def project(tmp_path):
    (tmp_path / "bitgate.toml").write_text(CONFIG, encoding="utf-8")
    return Project.load(tmp_path)


@pytest.mark.parametrize(
    ("tool", "request_", "expected"),
    [
        ("run_compare", Anything(side="rollout"), {"rollout": False}),
        ("run_compare", Anything(pair=["trainer", "rollout"]), {"rollout": False, "trainer": False}),
        ("bisect_layer", Anything(by_leg={"a": "baseline"}), {"baseline": False}),
        ("run_compare", Anything(side="rollout", options={"rollout": {"x": 1}}), {"rollout": True}),
        ("run_compare", Anything(options={"baseline": {"x": 1}}), {"baseline": True}),
        ("run_compare", Anything(options={"baseline": {}}), {}),
        ("run_compare", Anything(model="baseline", check="rollout"), {}),
        ("ab_benchmark", Anything(side="rollout"), {"rollout": False, "baseline": False}),
        ("ab_benchmark", Anything(side="rollout", breakdown=True), {"rollout": False}),
        ("ab_benchmark", Anything(side="baseline", other="trainer"), {"baseline": False, "trainer": False}),
        ("slice_model", Anything(), {"rollout": False}),
        ("slice_model", Anything(plan_only=True), {}),
    ],
)
def test_every_side_that_a_request_names_is_asked_about(project, tool, request_, expected):
    assert sides_of(project, tool, request_) == expected
