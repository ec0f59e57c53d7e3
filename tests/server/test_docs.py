"""The documentation says what the program does."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from bitgate.gates.roles import ROLES
from bitgate.server.cli import COMMANDS
from bitgate.server.exits import EXIT_INTERRUPTED
from bitgate.server.gate_tools import GATE_TOOLS
from bitgate.server.help_text import documented, updated
from bitgate.server.ledger_tools import LEDGER_TOOLS
from bitgate.server.resources import GUIDES, guide_text
from bitgate.tools.config.axes import AXES
from bitgate.tools.config.model import Config, GeneratorConfig, ModelConfig, PolicyConfig, SideConfig, WorkloadConfig
from bitgate.tools.registry import TOOLS
from bitgate.tools.verdicts import EXIT_BY_VERDICT, EXIT_GATE_CLOSED, EXIT_INTERNAL, EXIT_NO_VERDICT, EXIT_USAGE

DOCS = Path(__file__).resolve().parents[2] / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def links(path: Path) -> set[Path]:
    found = re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8"))
    return {(path.parent / target).resolve() for target in found if "://" not in target}


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_help_in_the_docs_is_the_help_of_the_program() -> None:
    assert documented(page("cli.md")) >= {"", *COMMANDS} - {"demo"}
    assert updated(page("cli.md")) == page("cli.md"), "run python -m bitgate.server.help_text docs/cli.md"


@pytest.mark.parametrize("model", [ModelConfig, SideConfig, WorkloadConfig, GeneratorConfig, PolicyConfig])
def test_every_configuration_key_is_documented(model: Any) -> None:
    text = page("configuration.md")

    assert [name for name in model.model_fields if f"`{name}`" not in text and f"{name}]" not in text] == []


def test_every_axis_is_documented() -> None:
    assert [axis for axis in AXES if f"`{axis}`" not in page("configuration.md")] == []


def test_the_example_configuration_loads() -> None:
    [example] = blocks(page("configuration.md"), "toml")

    assert set(Config.model_validate(tomllib.loads(example)).side) == {"rollout", "trainer"}


def test_the_client_examples_are_json_that_starts_the_server() -> None:
    examples = [json.loads(block) for block in blocks(page("server.md"), "json")]

    assert [next(iter(example.values()))["bitgate"].get("args", ["serve"])[-1] for example in examples] == ["serve"] * 3


def test_the_examples_with_two_roles_start_servers_of_those_roles() -> None:
    claude, code = (json.loads(block) for block in blocks(page("roles.md"), "json"))

    commands = [server["args"] for server in claude["mcpServers"].values()]
    assert [(words[:2], words[2]) for words in commands] == [(["serve", "--role"], role) for role in ROLES[:2]]
    [server] = code["servers"].values()
    assert server["type"] == "http" and code["inputs"][0]["id"] in server["headers"]["Authorization"]


def test_every_link_leads_somewhere_and_every_page_is_linked() -> None:
    pages = set(DOCS.glob("*.md"))
    linked = {target: page for page in [DOCS.parent / "README.md", *pages] for target in links(page)}

    assert [f"{linked[target]}: {target}" for target in linked if not target.exists()] == []
    assert pages - linked.keys() == set()


def test_every_tool_guide_and_exit_code_is_in_the_docs() -> None:
    named = {name for name in re.findall(r"`([a-z_]+)`", page("server.md"))}
    codes = {*EXIT_BY_VERDICT.values(), EXIT_NO_VERDICT, EXIT_GATE_CLOSED, EXIT_USAGE, EXIT_INTERNAL, EXIT_INTERRUPTED}

    ours = {name for name, tool in TOOLS.items() if tool.run.__module__.startswith("bitgate.")}  # other tests add some

    assert {*ours, *LEDGER_TOOLS, *(tool.name for tool in GATE_TOOLS), *GUIDES} - named == set()
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", page("cli.md"), re.MULTILINE)} == codes


@pytest.mark.parametrize("name", GUIDES)
def test_every_guide_is_there_and_short(name: str) -> None:
    assert 200 < len(guide_text(name)) < 40_000
