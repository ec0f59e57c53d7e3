"""What a gate says would produce the evidence it lacks is a call that exists and asks for that very evidence."""

from __future__ import annotations

import re
from typing import Any

import pytest

from bitgate.gates.conditions import GATE_CONDITIONS, Divergence, Facts
from bitgate.gates.source import _bisection
from bitgate.gates.spec import Need
from bitgate.gates.table import GATES
from bitgate.gates.today import Today
from bitgate.server.arguments import parse
from bitgate.store.records import Evidence
from bitgate.tools.registry import TOOLS

NAMES = {name: name for name in ("rollout", "trainer", "baseline", "slice", "full")}
NEEDS = {f"{gate.id} {need.key}": need for gate in GATES for need in gate.needs if need.tool in set(TOOLS)}


def called(text: str) -> tuple[str, dict[str, Any]]:
    """`tool(a="b", c=true)` as a tool and its arguments."""
    tool, _, inside = text.partition("(")
    values = {"true": True, "false": False}
    found = re.findall(r'(\w+)=(?:"([^"]*)"|(\w+))', inside.removesuffix(")"))
    return tool, {name: values[word] if word else quoted for name, quoted, word in found}


@pytest.mark.parametrize("need", NEEDS.values(), ids=NEEDS)
def test_the_call_of_a_need_is_one_that_its_tool_takes(need: Need) -> None:
    tool, arguments = called(need.call.format(**NAMES))
    assert tool == need.tool
    request = parse(TOOLS.find(tool).request, arguments).model_dump()
    named = {request.get(field) for field in ("side", "trainer", "other", "model")}
    assert {*need.sides} - {"baseline"} <= named
    assert need.model in {None, "full"} or need.tool == "slice_model" or need.model in named
    assert need.check is None or request.get("check", need.check) == need.check


@pytest.mark.parametrize(
    ("check", "sides", "expected"),
    [
        ("batch", {"side": "rollout"}, {"check": "batch", "side": "rollout"}),
        ("repeat", {"side": "rollout"}, {"check": "batch", "side": "rollout"}),
        (
            "rollout_vs_trainer",
            {"side": "rollout", "trainer": "transformers", "model": "tiny-slice"},
            {"check": "rollout_vs_trainer", "side": "rollout", "trainer": "transformers", "model": "tiny-slice"},
        ),
    ],
)
def test_a_divergence_without_a_repro_names_the_call_that_localises_it(check, sides, expected):
    evidence = Evidence.model_validate(
        {
            "id": "ev_" + "0" * 20, "run_id": "run_" + "0" * 20, "tool": "run_compare", "check": check,
            "request": {"check": check, "model": None, **sides}, "verdict": "fail", "summary": "s", "next": "n",
            "grade": "observed", "started_at": "2026-11-30T12:00:00.000Z", "finished_at": "2026-11-30T12:00:01.000Z",
        }
    )  # fmt: skip
    facts = Facts(unexplained=[Divergence(evidence.id, _bisection(evidence))])
    [unmet] = GATE_CONDITIONS["divergences_have_repros"](Today(), facts)
    tool, arguments = called(unmet.call)
    assert (tool, arguments) == ("bisect_layer", expected)
    parse(TOOLS.find(tool).request, arguments)
