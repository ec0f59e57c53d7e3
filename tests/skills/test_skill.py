"""The agent skill is valid by the Agent Skills specification, and its tables are the code's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bitgate.gates.table import GATE_IDS
from bitgate.server.skill_text import files
from bitgate.tools.registry import TOOLS

SKILL = Path(__file__).parents[2] / "skills" / "train-inference-consistency"
TEXT = (SKILL / "SKILL.md").read_text(encoding="utf-8")
HEAD, BODY = TEXT.split("\n---\n", 1)
FIELDS = dict(re.findall(r"^([a-z-]+): (.+)$", HEAD, re.MULTILINE))


def test_its_name_is_its_folders_and_within_the_specification():
    assert FIELDS["name"] == SKILL.name
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", FIELDS["name"]) and len(FIELDS["name"]) <= 64


def test_description_and_compatibility_are_within_their_limits():
    assert 1 <= len(FIELDS["description"]) <= 1024 and "Use when" in FIELDS["description"]
    assert len(FIELDS["compatibility"]) <= 500


def test_it_has_no_field_that_the_specification_does_not_know():
    assert set(FIELDS) <= {"name", "description", "license", "compatibility", "allowed-tools", "product"}


def test_the_body_is_short_enough_to_be_read():
    assert len(BODY.splitlines()) < 500 and len(BODY) < 20_000


def test_every_reference_it_names_exists_and_every_one_that_exists_is_named():
    named = set(re.findall(r"references/([a-z-]+\.md)", TEXT))
    assert named == {path.name for path in (SKILL / "references").iterdir()}


@pytest.mark.parametrize("name", files())
def test_its_tables_are_made_from_the_code(name):
    made = "python -m bitgate.server.skill_text skills/train-inference-consistency/references"
    assert (SKILL / "references" / name).read_text(encoding="utf-8") == files()[name], made


def test_it_names_every_gate_and_every_tool():
    assert all(f"| {gate} " in BODY for gate in GATE_IDS)
    assert all(tool in BODY for tool in TOOLS)


def test_the_official_validator_accepts_it():
    from skills_ref import validate

    assert validate(SKILL) == []
