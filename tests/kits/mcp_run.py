"""A run as an MCP client meets it: a real server on stdio, `running` first, then get_run until it has ended."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters

LARGEST_ANSWER = 10_000


@dataclass
class Followed:
    """`answers`: every structured answer, the last one is the end. `notes`: the progress that was told, in order."""

    answers: list[dict[str, Any]] = field(default_factory=list)
    notes: list[float] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    @property
    def end(self) -> dict[str, Any]:
        return self.answers[-1]


def follow(
    project: Path,
    tool: str,
    body: Mapping[str, Any],
    *,
    wait_s: float = 0.5,
    timeout_s: float = 240,
    env: Mapping[str, str] | None = None,
) -> Followed:
    """Starts a run that is not over after `wait_s`, and stays with it. Checks what holds for every run over MCP."""
    seen = anyio.run(_follow, project, tool, {**body, "wait_s": wait_s}, timeout_s, dict(env or os.environ))
    first, *later = seen.answers
    assert (first["state"], first.get("verdict")) == ("running", None) and first["run_id"] in first["next"], first
    assert later and all(answer["run_id"] == first["run_id"] for answer in later)
    assert seen.notes == sorted(seen.notes), "progress never goes back, from one call to the next either"
    return seen


async def _follow(project: Path, tool: str, body: Mapping[str, Any], timeout_s: float, env: dict[str, str]) -> Followed:
    seen = Followed()

    async def on_progress(done: float, total: float | None, message: str | None) -> None:
        seen.notes.append(done)
        seen.messages.append(message or "")

    async def answered(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        before = len(seen.notes)
        result = await client.call_tool(name, dict(arguments), progress_callback=on_progress)
        assert not result.is_error and isinstance(result.structured_content, dict), result.content
        told = seen.notes[before:]
        assert told == sorted(set(told)), "one call is told each progress once"
        assert len(result.model_dump_json(by_alias=True, exclude_none=True)) < LARGEST_ANSWER
        seen.answers.append(result.structured_content)
        return result.structured_content

    arguments = ["-m", "bitgate.server", "--project", str(project), "serve"]
    parameters = StdioServerParameters(command=sys.executable, args=arguments, env=env, cwd=str(project))
    with anyio.fail_after(timeout_s):
        async with Client(parameters) as client:
            run_id = (await answered(tool, body))["run_id"]
            while seen.end["state"] == "running":
                await answered("get_run", {"run_id": run_id, "wait_s": 20})
    return seen
