"""Plays the acts: starts `bitgate serve`, calls its tools as an MCP client, shows what came back."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
from mcp import Client, StdioServerParameters

from bitgate.server.cli_output import COLOURS, Bar
from bitgate.server.demo.acts import Act
from bitgate.tools.errors import BitgateError

LOG: Final = "server.log"
WAIT_S: Final = 50


async def play(folder: Path, acts: Sequence[Act]) -> list[str]:
    """Every act in order; returns one line for each whose verdict was not the expected one."""
    surprises: list[str] = []
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "bitgate.server", "--project", str(folder), "serve"], cwd=folder
    )
    with (folder / LOG).open("w", encoding="utf-8") as log:
        async with Client(_transport(server, log)) as client:
            for number, act in enumerate(acts, 1):
                click.secho(f"\n{number}. {act.title}", bold=True)
                click.echo(f"   {act.why}")
                click.echo(f"   run_compare({', '.join(f'{k}={v!r}' for k, v in act.request.items())})")
                answer = await _call(client, act)
                _show(answer)
                if answer.get("verdict") != act.expected:
                    surprises.append(
                        f"{act.title}: expected {act.expected}, got {answer.get('verdict') or answer['state']}"
                    )
    return surprises


def _transport(server: StdioServerParameters, log: Any) -> Any:
    from mcp.client.stdio import stdio_client

    return stdio_client(server, errlog=log)


async def _call(client: Client, act: Act) -> dict[str, Any]:
    started = time.monotonic()
    with Bar() as bar:
        answer = await _answer(client, "run_compare", {**act.request, "wait_s": WAIT_S}, bar)
        while answer["state"] == "running":
            answer = await _answer(client, "get_run", {"run_id": answer["run_id"], "wait_s": WAIT_S}, bar)
    answer["seconds"] = time.monotonic() - started
    return answer


async def _answer(client: Client, tool: str, arguments: dict[str, Any], bar: Bar) -> dict[str, Any]:
    async def show(progress: float, total: float | None, message: str | None) -> None:
        await bar.update(progress, total, message or "")

    result = await client.call_tool(tool, arguments, progress_callback=show)
    if result.is_error or result.structured_content is None:
        raise BitgateError(f"{tool} answered: {' '.join(getattr(part, 'text', '') for part in result.content)}")
    return dict(result.structured_content)


def _show(answer: dict[str, Any]) -> None:
    word = str(answer.get("verdict") or answer["state"])
    click.secho(f"   {word.upper()}", fg=COLOURS.get(word, "yellow"), bold=True, nl=False)
    click.echo(f"  {answer['summary']}  ({answer['seconds']:.0f} s)")
    figures = answer.get("figures", {})
    if answer.get("evidence_id"):
        click.echo(
            f"   {figures.get('rows_different')} of {figures.get('rows_compared')} rows different, "
            f"evidence {answer['evidence_id']}"
        )
