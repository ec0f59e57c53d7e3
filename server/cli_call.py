"""`bitgate call`: the tools without a server, waited for to the end."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import anyio
import click

from bitgate.gates.roles import ROLES
from bitgate.gates.rows import Role
from bitgate.server import calls
from bitgate.server.answers import RunAnswer
from bitgate.server.arguments import WAIT, parse
from bitgate.server.cli_output import Bar, show_answer, show_json
from bitgate.server.exits import EXIT_INTERRUPTED, exit_of
from bitgate.server.gate_tools import GATE_TOOLS
from bitgate.server.ledger_tools import LEDGER_TOOLS
from bitgate.server.session import Session, Workplace, user_name
from bitgate.tools.errors import unknown_name
from bitgate.tools.registry import TOOLS

READERS: Final = {**LEDGER_TOOLS, **{tool.name: tool for tool in GATE_TOOLS}}


@click.command()
@click.argument("tool")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer as JSON.")
@click.option("--actor", default=None, help="Name written beside the run; default: the user's.")
@click.option(
    "--role",
    type=click.Choice(ROLES),
    default="consistency",
    show_default=True,
    envvar="BITGATE_ROLE",
    help="What the call may do.",
)
@click.pass_obj
def call(start: Path, tool: str, arguments: tuple[str, ...], as_json: bool, actor: str | None, role: Role) -> None:
    """Call TOOL and wait for its end; the verdict is the exit code.

    A value is JSON where it reads as JSON, else text. A dot reaches inside: options.rollout.batch_invariant=true.
    Ctrl-C cancels the run.

    \b
        bitgate call run_compare check=batch side=rollout
        bitgate call run_compare check=batch side=rollout options.rollout.batch_invariant=true --json
        bitgate call get_evidence verdict=fail limit=5
    """
    session = Session(Workplace(start), actor or f"cli:{user_name()}", role)
    given = arguments_from(arguments)
    if tool in READERS:
        _ledger_call(session, tool, given, as_json)
        return
    if tool not in set(TOOLS):
        raise unknown_name("tool", tool, [*TOOLS, *READERS])
    given.pop(WAIT, None)
    answer = anyio.run(_run_to_end, session, tool, given)
    show_json(answer.model_dump(mode="json")) if as_json else show_answer(answer)
    sys.exit(exit_of(answer))


def arguments_from(words: tuple[str, ...]) -> dict[str, Any]:
    """`key=value` words as one object; `a.b=1` is `{"a": {"b": 1}}`."""
    given: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise click.UsageError(f"{word!r}: arguments are KEY=VALUE, such as check=batch")
        _put(given, key.split("."), _value(text), word)
    return given


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=lambda _: text)
    except (ValueError, RecursionError):
        return text


def _put(given: dict[str, Any], path: list[str], value: Any, word: str) -> None:
    for part in path[:-1]:
        given = given.setdefault(part, {})
        if not isinstance(given, dict):
            raise click.UsageError(f"{word!r}: {part} already has a value")
    if path[-1] in given:
        raise click.UsageError(f"{word!r}: {path[-1]} is given twice")
    given[path[-1]] = value


def _ledger_call(session: Session, name: str, given: Mapping[str, Any], as_json: bool) -> None:
    tool = READERS[name]

    async def ask() -> Any:
        with Bar() as bar:
            return await tool.run(session, parse(tool.request, given), bar.update)

    body = anyio.run(ask)
    if as_json or tool.answer is not RunAnswer:
        show_json(body)
    else:
        show_answer(RunAnswer.model_validate(body))


async def _run_to_end(session: Session, tool: str, given: Mapping[str, Any]) -> RunAnswer:
    """Starts the run and waits for it. An interrupt ends the run first, then the command."""
    run = await calls.start(session, tool, given)
    click.echo(f"{tool} {run.id}", err=True)
    try:
        with Bar() as bar:
            return await calls.wait(session, run.id, None, bar.update)
    except anyio.get_cancelled_exc_class():
        with anyio.CancelScope(shield=True):
            answer = await calls.cancel(session, run.id)
        click.echo(answer.summary, err=True)
        sys.exit(EXIT_INTERRUPTED)
